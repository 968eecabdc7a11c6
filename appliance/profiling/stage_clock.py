"""Adds up the seconds of named stages. Knows no stage by name."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StageClock:
    """`parts` of a stage are seconds that something else measured inside it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self.parts: dict[str, dict[str, float]] = {}
        self._clock = clock

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started_s = self._clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - started_s

    def add_parts(self, name: str, parts: dict[str, float]) -> None:
        held = self.parts.setdefault(name, {})
        for part, seconds in parts.items():
            held[part] = held.get(part, 0.0) + seconds
