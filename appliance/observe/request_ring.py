"""The last finished requests, and histograms of all since the start, by model. Knows no HTTP.

Memory is bounded: so many records, so many models.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from appliance.engine.percentiles import PercentileReading, nearest_rank
from appliance.observe.histogram import LONG_SECONDS, SECONDS, TOKENS, Histogram
from appliance.observe.request_record import RequestRecord

CAPACITY = 4096
_MOST_MODELS = 64  # beyond them: under one name
_OTHER = "other"


def _seconds() -> Histogram:
    return Histogram(SECONDS)


def _long_seconds() -> Histogram:
    return Histogram(LONG_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHistograms:
    """One model's requests since the start."""

    ttft: Histogram = field(default_factory=_seconds)
    gap: Histogram = field(default_factory=_seconds)
    tpot: Histogram = field(default_factory=_seconds)
    queue: Histogram = field(default_factory=_long_seconds)
    prefill: Histogram = field(default_factory=_long_seconds)
    decode: Histogram = field(default_factory=_long_seconds)
    total: Histogram = field(default_factory=_long_seconds)
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    output_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    ends: Counter[str] = field(default_factory=Counter)  # by reason


class RequestRing:
    """Any thread may add and read."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.on_add: Callable[[RequestRecord], None] = lambda _: None  # told of each record; must not block
        self._records: deque[RequestRecord] = deque(maxlen=capacity)
        self._models: dict[str, ModelHistograms] = {}
        self._lock = threading.Lock()

    def of_model(self, model: str) -> ModelHistograms:
        with self._lock:
            if model not in self._models and len(self._models) >= _MOST_MODELS:
                model = _OTHER
            return self._models.setdefault(model, ModelHistograms())

    def models(self) -> dict[str, ModelHistograms]:
        with self._lock:
            return dict(self._models)

    def add(self, record: RequestRecord) -> None:
        found = self.of_model(record.model)
        for histogram, value in (
            (found.ttft, record.ttft_s),
            (found.tpot, record.tpot_s),
            (found.queue, record.queue_s),
            (found.prefill, record.prefill_s),
            (found.decode, record.decode_s),
            (found.total, record.total_s),
            (found.prompt_tokens, record.prompt_tokens),
            (found.output_tokens, record.output_tokens),
        ):
            if value is not None:
                histogram.add(value)
        with self._lock:
            found.ends[record.reason] += 1
            self._records.append(record)
        self.on_add(record)

    def since(self, unix_s: float) -> list[RequestRecord]:
        """Those that ended then or later, newest first."""
        with self._lock:
            records = list(self._records)
        return [record for record in reversed(records) if record.ended_unix_s >= unix_s]


def percentiles_of(
    records: Iterable[RequestRecord], value_of: Callable[[RequestRecord], float | None]
) -> PercentileReading:
    """Percentiles over requests of one of their values."""
    values = sorted(value for value in map(value_of, records) if value is not None)
    if not values:
        return PercentileReading(0, None, None, None)
    p50, p95, p99 = (nearest_rank(values, percent) for percent in (50, 95, 99))
    return PercentileReading(len(values), p50, p95, p99)
