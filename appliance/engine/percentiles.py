"""Percentiles over the last seconds. Knows values and their age; knows not what they measure."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class PercentileReading(NamedTuple):
    """How many values the window holds, and their nearest-rank percentiles, None if it is empty."""

    num_values: int
    p50: float | None
    p95: float | None
    p99: float | None


class PercentileWindow:
    """The values of the last `window_s` seconds, the newest `capacity` of them at most. Thread-safe."""

    def __init__(
        self, window_s: float = 60.0, capacity: int = 4096, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.window_s = window_s
        self._values: deque[tuple[float, float]] = deque(maxlen=capacity)
        self._clock = clock
        self._lock = threading.Lock()

    def add(self, value: float) -> None:
        with self._lock:
            self._values.append((self._clock(), value))

    def read(self) -> PercentileReading:
        with self._lock:
            oldest_s = self._clock() - self.window_s
            while self._values and self._values[0][0] < oldest_s:
                self._values.popleft()
            values = [value for _, value in self._values]
        values.sort()
        if not values:
            return PercentileReading(0, None, None, None)
        p50, p95, p99 = (nearest_rank(values, percent) for percent in (50, 95, 99))
        return PercentileReading(len(values), p50, p95, p99)


def nearest_rank(ascending: list[float], percent: int) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
    return ascending[max(1, math.ceil(len(ascending) * percent / 100)) - 1]
