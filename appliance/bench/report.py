"""One run of the benchmark as a value: what was sent, what came back. The JSON file is exactly this."""

from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median

import msgspec

from appliance.bench.request_timing import RequestTiming
from appliance.bench.statistics import Interval, percentiles
from appliance.engine.percentiles import nearest_rank

METRICS = ("ttft", "tpot", "latency")


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must keep to count as good, in seconds; None asks nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def are_met(self, timing: RequestTiming) -> bool:
        for limit, value in ((self.ttft_s, timing.ttft_s), (self.tpot_s, timing.tpot_s)):
            if limit is not None and value is not None and value > limit:
                return False
        return timing.error is None


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One pattern of traffic. Percentiles are over requests, those of `itl` over all gaps; seconds."""

    name: str  # "8 clients" or "2.5 requests/s": what two runs are compared by
    load: float  # clients, or requests a second
    is_open: bool
    wall_s: float
    num_requests: int
    errors: dict[str, int]
    output_tokens_per_s: float
    requests_per_s: float
    good_requests_per_s: float
    percentiles: dict[str, tuple[Interval, ...]]
    itl: tuple[float, ...]
    max_gap_s: float
    samples: dict[str, tuple[float, ...]]  # of each metric, in the order in which the answers ended
    rounds: dict[str, tuple[float | None, ...]] = {}  # of each metric, the median of each turn


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run against one server."""

    url: str
    model: str
    version: str
    started: str  # UTC
    machine: str
    workload: str
    targets: Targets
    stages: tuple[Stage, ...]


def make_stage(
    name: str,
    load: float,
    rounds: Sequence[Sequence[RequestTiming]],
    *,
    is_open: bool,
    wall_s: float,
    targets: Targets,
) -> Stage:
    """Count and rank what one pattern of traffic brought, turn by turn.

    `wall_s` is the time in which it was sent.
    """
    timings = list(chain.from_iterable(rounds))
    good = [timing for timing in timings if timing.error is None]
    samples = {name: _values(name, good) for name in METRICS}
    gaps = sorted(chain.from_iterable(timing.gaps_s for timing in good))
    return Stage(
        name=name,
        load=load,
        is_open=is_open,
        wall_s=wall_s,
        num_requests=len(timings),
        errors=_counted([timing.error for timing in timings if timing.error is not None]),
        output_tokens_per_s=sum(timing.num_output_tokens for timing in good) / wall_s,
        requests_per_s=len(good) / wall_s,
        good_requests_per_s=sum(map(targets.are_met, timings)) / wall_s,
        percentiles={name: percentiles(values) for name, values in samples.items()},
        itl=tuple(nearest_rank(gaps, percent) for percent in (50, 95, 99)) if gaps else (),
        max_gap_s=gaps[-1] if gaps else 0.0,
        samples=samples,
        rounds={name: tuple(_middle(_values(name, turn)) for turn in rounds) for name in METRICS},
    )


def _values(metric: str, timings: Iterable[RequestTiming]) -> tuple[float, ...]:
    """One of METRICS of each request that was answered and has it."""
    found = (
        {"ttft": timing.ttft_s, "tpot": timing.tpot_s, "latency": timing.ended_s - timing.sent_s}[metric]
        for timing in timings
        if timing.error is None
    )
    return tuple(value for value in found if value is not None)


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _counted(errors: list[str]) -> dict[str, int]:
    return {error: errors.count(error) for error in dict.fromkeys(errors)}


def span_s(timings: Sequence[RequestTiming]) -> float:
    """From the first request out to the last answer's end."""
    return max(t.ended_s for t in timings) - min(t.sent_s for t in timings)
