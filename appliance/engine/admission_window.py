"""How often a service class may admit: windows that follow its target and its backlog. Knows no queue.

A class admits in rounds, at least a window apart; what arrived meanwhile starts together. A narrow window
means prompt starts, a wide one fewer interruptions for those that run.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.engine.percentiles import nearest_rank
from appliance.engine.sequence import ServiceClass

# Of the wait for the start, at each class's P99: 2.5, 10 and 50 times what the P99 request of a chat takes on
# an idle small CPU, 6 s (benchmarks/scheduling).
TARGETS_S: Mapping[ServiceClass, float] = {
    ServiceClass.GOLD: 15.0,
    ServiceClass.SILVER: 60.0,
    ServiceClass.BRONZE: 300.0,
}
WINDOWS_S: Mapping[ServiceClass, float] = {
    ServiceClass.GOLD: 0.025,
    ServiceClass.SILVER: 0.1,
    ServiceClass.BRONZE: 0.2,
}
_LEAST, _MOST = 0.125, 4.0  # times the window at rest
_SHRINK, _WIDEN, _REST = 0.5, 1.5, 0.9
_FULL_BACKLOG = 0.7  # of the queue's limit
_ADAPT_EVERY_S = 0.5
_SAMPLE_WINDOW_S, _MOST_SAMPLES = 60.0, 256


@dataclass(slots=True)
class _Window:
    base_s: float
    target_s: float
    width_s: float
    last_round_s: float = float("-inf")
    adapted_s: float = float("-inf")
    waits: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))

    def p99_s(self, now_s: float) -> float | None:
        while self.waits and self.waits[0][0] < now_s - _SAMPLE_WINDOW_S:
            self.waits.popleft()
        values = sorted(wait_s for _, wait_s in self.waits)
        return nearest_rank(values, 99) if values else None

    def adapt(self, now_s: float, backlog: float) -> None:
        p99_s = self.p99_s(now_s)
        if p99_s is not None and p99_s > self.target_s:
            factor = _SHRINK
        elif backlog > _FULL_BACKLOG:
            factor = _WIDEN
        else:
            factor = _REST if self.width_s > self.base_s else 1 / _REST
            self.width_s = _between(self.width_s, self.base_s, self.width_s * factor)
            return
        self.width_s = min(max(self.width_s * factor, _LEAST * self.base_s), _MOST * self.base_s)


class AdmissionWindows:
    """One window a class: halved while its P99 misses the target, widened past 70% of its backlog's limit."""

    def __init__(
        self,
        *,
        targets_s: Mapping[ServiceClass, float] = TARGETS_S,
        windows_s: Mapping[ServiceClass, float] = WINDOWS_S,
    ) -> None:
        self._windows = {c: _Window(windows_s[c], targets_s[c], windows_s[c]) for c in ServiceClass}

    def is_open(self, service_class: ServiceClass, now_s: float) -> bool:
        """Whether a round may begin, or is the one of this very moment."""
        window = self._windows[service_class]
        return now_s == window.last_round_s or now_s - window.last_round_s >= window.width_s

    def admitted(self, service_class: ServiceClass, wait_s: float, now_s: float) -> None:
        """Note that a sequence starts now, after a wait."""
        window = self._windows[service_class]
        window.last_round_s = now_s
        window.waits.append((now_s, wait_s))

    def adapt(self, service_class: ServiceClass, now_s: float, *, backlog: float) -> None:
        """Adjust a width, twice a second at most. `backlog` is the waiting over their limit."""
        window = self._windows[service_class]
        if now_s - window.adapted_s >= _ADAPT_EVERY_S:
            window.adapted_s = now_s
            window.adapt(now_s, backlog)

    def width_s(self, service_class: ServiceClass) -> float:
        return self._windows[service_class].width_s


def _between(one: float, other: float, value: float) -> float:
    """The value, kept from passing either of two bounds given in any order."""
    return min(max(value, min(one, other)), max(one, other))
