"""Whether a long run gets worse: windows of it in order, and what drifts over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from appliance.bench.report import Stage
from appliance.bench.request_timing import RequestTiming
from appliance.bench.statistics import trend

_SIGNIFICANCE = 0.01
# Smaller drifts are within what a healthy hour shows: caches filling, memory coming back late.
_LATENCY_DRIFT = 0.10
_MEMORY_DRIFT = 0.05
_MEMORY_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of the soak; times in seconds, memory in bytes and None where the server tells none."""

    ttft_s: float | None
    tpot_s: float | None
    memory_bytes: int | None
    num_errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One quantity over the whole soak: where it began along its trend, how far it went."""

    name: str
    start: float
    change: float
    p_value: float
    is_drift: bool
    is_noisy: bool = False  # it went as far as a drift would, but so it does by chance

    @property
    def words(self) -> str:
        share = self.change / self.start if self.start else 0.0
        verb = "drifts" if self.is_drift else "holds within its noise" if self.is_noisy else "holds"
        return f"{self.name} {verb}: {share:+.1%} over the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """A soak of one server: its windows in order, and all of it as one stage."""

    windows: tuple[Window, ...]
    stage: Stage

    @property
    def drifts(self) -> tuple[Drift, ...]:
        return find_drifts(self.windows)

    @property
    def verdict(self) -> str:
        drifts = self.drifts
        if not drifts:
            return f"{len(self.windows)} windows are too few to tell a drift; soak for longer"
        found = [drift.name for drift in drifts if drift.is_drift]
        return f"{', '.join(found) or 'nothing'} drifts over {len(self.windows)} windows"


def window_of(timings: Sequence[RequestTiming], memory_bytes: int | None) -> Window:
    ttfts = [t.ttft_s for t in timings if t.error is None and t.ttft_s is not None]
    tpots = [t.tpot_s for t in timings if t.error is None and t.tpot_s is not None]
    return Window(
        ttft_s=median(ttfts) if ttfts else None,
        tpot_s=median(tpots) if tpots else None,
        memory_bytes=memory_bytes,
        num_errors=sum(t.error is not None for t in timings),
    )


def find_drifts(windows: Sequence[Window]) -> tuple[Drift, ...]:
    """Look for a lasting rise of each quantity. The first tenth of the run is its warm-up."""
    settled = windows[len(windows) // 10 :]
    columns = (
        ("TTFT", [w.ttft_s for w in settled], _LATENCY_DRIFT, 0.0),
        ("TPOT", [w.tpot_s for w in settled], _LATENCY_DRIFT, 0.0),
        ("memory", [w.memory_bytes for w in settled], _MEMORY_DRIFT, _MEMORY_BYTES),
    )
    found = []
    for name, column, share, least in columns:
        values = [float(value) for value in column if value is not None]
        if len(values) < 4:
            continue
        change, p_value = trend(values)
        start = max(1e-12, median(values) - change / 2)
        is_far, is_sure = change > max(least, share * start), p_value < _SIGNIFICANCE
        found.append(
            Drift(
                name=name,
                start=start,
                change=change,
                p_value=p_value,
                is_drift=is_far and is_sure,
                is_noisy=is_far and not is_sure,
            )
        )
    return tuple(found)
