"""Counts values by size, for ever, in constant space. Knows no unit and no exporter."""

import threading
from bisect import bisect_left
from dataclasses import dataclass

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0)
LONG_SECONDS = (*SECONDS[4:], 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0)
TOKENS = tuple(float(2**power) for power in range(18))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramReading:
    """How many values were at most each bound, the last of which is infinity; and the sum of all."""

    buckets: tuple[tuple[float, int], ...]
    total: float


class Histogram:
    """Any thread may add and read."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._lock = threading.Lock()

    def add(self, value: float) -> None:
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._total += value

    def read(self) -> HistogramReading:
        with self._lock:
            counts, total = list(self._counts), self._total
        sofar, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            sofar += count
            buckets.append((bound, sofar))
        return HistogramReading(buckets=tuple(buckets), total=total)
