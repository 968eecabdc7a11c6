"""What a load run found: percentiles over its requests and gaps. Knows timings; knows no sockets."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from appliance.bench.request_timing import RequestTiming
from appliance.engine.percentiles import nearest_rank


class Percentiles(NamedTuple):
    """Nearest-rank percentiles, in seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One run of `concurrency` clients, each sending its next request when the last one ended."""

    concurrency: int
    sends_token_ids: bool
    timings: tuple[RequestTiming, ...]

    @property
    def succeeded(self) -> tuple[RequestTiming, ...]:
        return tuple(timing for timing in self.timings if timing.error is None)

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(timing.error for timing in self.timings if timing.error is not None)

    @property
    def wall_s(self) -> float:
        """From the first request out to the last answer's end."""
        return max(t.ended_s for t in self.timings) - min(t.sent_s for t in self.timings)

    @property
    def output_tokens_per_s(self) -> float:
        return sum(timing.num_output_tokens for timing in self.succeeded) / self.wall_s

    @property
    def ttft(self) -> Percentiles | None:
        """Over requests; None where no text came at all."""
        return _percentiles(timing.ttft_s for timing in self.succeeded)

    @property
    def tpot(self) -> Percentiles | None:
        """Over requests."""
        return _percentiles(timing.tpot_s for timing in self.succeeded)

    @property
    def itl(self) -> Percentiles | None:
        """Over all gaps of all requests."""
        return _percentiles(gap for timing in self.succeeded for gap in timing.gaps_s)

    @property
    def max_gap_s(self) -> float | None:
        """The worst gap between two chunks of any request."""
        return max((gap for timing in self.succeeded for gap in timing.gaps_s), default=None)


def _percentiles(values: Iterable[float | None]) -> Percentiles | None:
    ascending = sorted(value for value in values if value is not None)
    if not ascending:
        return None
    return Percentiles(*(nearest_rank(ascending, percent) for percent in (50, 95, 99)))
