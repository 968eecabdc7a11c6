"""Who of the waiting starts next: arrival order, or lanes and service classes. Knows no blocks."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from appliance.engine.admission_window import AdmissionWindows
from appliance.engine.sequence import Lane, Sequence, ServiceClass
from appliance.engine.waiting_queue import Group, WaitingQueue, group_of

CLASS_WEIGHTS: Mapping[ServiceClass, int] = {
    ServiceClass.GOLD: 5,
    ServiceClass.SILVER: 3,
    ServiceClass.BRONZE: 1,
}
LANE_WEIGHTS: Mapping[Lane, int] = {Lane.SHORT: 3, Lane.LONG: 1}
# Of the starts while somebody waits past the patience, every fourth goes to whoever waits longest.
_STARTS_PER_RESCUE = 4
# Work that a weight of one may save up: for gold, some tens of chat's turns.
_SAVINGS_TOKENS = 2000
# While a class was seen lately, lower ones leave it every eighth place.
_LATELY_S, _PLACES_PER_RESERVED = 60.0, 8


class Candidate(NamedTuple):
    """One that may start. While an urgent one lacks blocks nobody else starts, so that they gather for it."""

    sequence: Sequence
    is_urgent: bool = False


class WaitingOrder(Protocol):
    """Names who may start next. Asked again at every chance to start one, so asking counts for nothing."""

    def candidates(
        self, waiting: WaitingQueue, now_s: float, *, num_running: int, num_places: int
    ) -> Iterable[Candidate]:
        """Yield who may start in one of `num_places`, the best first; one at least where none run."""

    def started(self, sequence: Sequence, waiting: WaitingQueue, now_s: float) -> None:
        """Note that a sequence, still in `waiting`, starts now for the first time."""

    def window_s(self, service_class: ServiceClass) -> float | None:
        """The least time between admissions of a class while classes compete; None if there is none."""


class ArrivalOrder:
    """First come, first served; those in front, such as preempted ones, before all."""

    def candidates(
        self,
        waiting: WaitingQueue,
        now_s: float,  # noqa: ARG002  # the order looks at no clock
        *,
        num_running: int,  # noqa: ARG002  # nor at anyone else
        num_places: int,  # noqa: ARG002
    ) -> Iterator[Candidate]:
        yield Candidate(next(iter(waiting)), is_urgent=True)

    def started(self, sequence: Sequence, waiting: WaitingQueue, now_s: float) -> None:
        pass

    def window_s(self, service_class: ServiceClass) -> float | None:  # noqa: ARG002  # the same for all
        return None


_KeyT = TypeVar("_KeyT", ServiceClass, Lane)


class _Shares(Generic[_KeyT]):
    """Start-time fair queueing (Goyal, Vin, Cheng 1996) over keys: work is shared out by weight.

    A key's tag is the virtual time up to which it was served; the least goes first. One that uses less than
    its share saves up a little: so what stays below its share hardly waits, and none can save up much.
    """

    def __init__(self, weights: Mapping[_KeyT, int]) -> None:
        self._weights: Mapping[_KeyT, int] = weights
        self._now = 0.0
        self._served: dict[_KeyT, float] = {}

    def tag(self, key: _KeyT) -> float:
        return max(self._now - _SAVINGS_TOKENS, self._served.get(key, 0.0))

    def serve(self, key: _KeyT, work: float, backlogged: Iterable[_KeyT]) -> None:
        """Charge work to a key. `backlogged` are all that wait, also those that were passed over."""
        start = self.tag(key)
        self._now = max(self._now, min((self.tag(other) for other in backlogged), default=start))
        self._served[key] = start + work / self._weights[key]


class FairOrder:
    """Shares starts by expected work: 5:3:1 between classes, 3:1 between the lanes of each.

    Within class and lane the first come is the first served. Those in front of the queue, such as preempted
    ones, go before all. Whoever waited for `patience_s` is rescued: every fourth start goes to the one that
    came first, and nobody takes blocks before it. So a wait ends after the patience and at most four starts
    for each of those that came before, whatever the load.
    """

    def __init__(
        self, *, patience_s: float = 30.0, queue_limit: int = 256, windows: AdmissionWindows | None = None
    ) -> None:
        self._windows = windows
        self._patience_s = patience_s
        self._queue_limit = max(1, queue_limit)
        self._classes: _Shares[ServiceClass] = _Shares(CLASS_WEIGHTS)
        self._lanes = {service_class: _Shares(LANE_WEIGHTS) for service_class in ServiceClass}
        self._num_starts_since_rescue = 0
        self._seen_s: dict[ServiceClass, float] = {}

    def candidates(
        self, waiting: WaitingQueue, now_s: float, *, num_running: int, num_places: int
    ) -> Iterator[Candidate]:
        urgent = waiting.first_in_front or self._to_rescue(waiting, now_s)
        if urgent is not None:
            yield Candidate(urgent, is_urgent=True)
        heads = waiting.heads()
        competing = {group.service_class for group in heads}
        is_open = self._open_classes(waiting, competing, now_s, num_running)
        if num_running > 0 and (num_running + num_places) // _PLACES_PER_RESERVED >= num_places:
            is_open = is_open & self._privileged(now_s)
        yield from (Candidate(heads[g]) for g in sorted(heads, key=self._rank) if g.service_class in is_open)

    def started(self, sequence: Sequence, waiting: WaitingQueue, now_s: float) -> None:
        own, heads = group_of(sequence), waiting.heads()
        self._seen_s[own.service_class] = now_s
        self._classes.serve(own.service_class, sequence.expected_work, {g.service_class for g in heads})
        lanes = [group.lane for group in heads if group.service_class is own.service_class]
        self._lanes[own.service_class].serve(own.lane, sequence.expected_work, lanes)
        is_rescue = sequence is self._to_rescue(waiting, now_s)
        self._num_starts_since_rescue = 0 if is_rescue else self._num_starts_since_rescue + 1
        if self._windows is not None:
            self._windows.admitted(sequence.service_class, now_s - sequence.arrival_s, now_s)

    def window_s(self, service_class: ServiceClass) -> float | None:
        return None if self._windows is None else self._windows.width_s(service_class)

    def _to_rescue(self, waiting: WaitingQueue, now_s: float) -> Sequence | None:
        first = waiting.first_arrived
        if first is None or now_s - first.arrival_s < self._patience_s:
            return None
        return first if self._num_starts_since_rescue >= _STARTS_PER_RESCUE - 1 else None

    def _privileged(self, now_s: float) -> set[ServiceClass]:
        """The best class that was seen lately, and any better one: for them the last places are kept."""
        lately = [c for c in ServiceClass if now_s - self._seen_s.get(c, float("-inf")) < _LATELY_S]
        best = lately[0] if lately else ServiceClass.BRONZE
        return set(list(ServiceClass)[: list(ServiceClass).index(best) + 1])

    def _rank(self, group: Group) -> tuple[float, float]:
        return self._classes.tag(group.service_class), self._lanes[group.service_class].tag(group.lane)

    def _open_classes(
        self, waiting: WaitingQueue, competing: set[ServiceClass], now_s: float, num_running: int
    ) -> set[ServiceClass]:
        """Windows part classes that compete; with nobody to protect they would only lose time."""
        if self._windows is None or num_running == 0 or len(competing) < 2:
            return competing
        for each in competing:
            self._windows.adapt(each, now_s, backlog=waiting.num_in_class(each) / self._queue_limit)
        return {each for each in competing if self._windows.is_open(each, now_s)}
