"""The sequences that wait: by arrival, and by class and lane. Knows their order; chooses none.

In front of all stand those whose wait is over: preempted sequences, and further choices of a prompt that
is computed.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from appliance.engine.sequence import Lane, Sequence, SequenceId, ServiceClass


class Group(NamedTuple):
    """Sequences that are treated alike: first come, first served among them."""

    service_class: ServiceClass
    lane: Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """Where a sequence stands among those of its class that wait, from 1; itself included in the total."""

    position: int
    total: int


class WaitingQueue:
    """Iterates over those in front, the latest put there first, then over the rest by arrival."""

    def __init__(self) -> None:
        self._front: OrderedDict[SequenceId, Sequence] = OrderedDict()
        self._arrived: OrderedDict[SequenceId, Sequence] = OrderedDict()
        self._groups: dict[Group, OrderedDict[SequenceId, Sequence]] = {
            Group(service_class, lane): OrderedDict() for service_class in ServiceClass for lane in Lane
        }

    def __len__(self) -> int:
        return len(self._front) + len(self._arrived)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._front.values(), self._arrived.values())

    def get(self, sequence_id: SequenceId) -> Sequence | None:
        return self._arrived.get(sequence_id) or self._front.get(sequence_id)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence behind those of its group. Its class and lane stay as they are from here."""
        self._arrived[sequence.sequence_id] = sequence
        self._groups[group_of(sequence)][sequence.sequence_id] = sequence

    def add_first(self, sequence: Sequence) -> None:
        """Put a sequence in front of everyone; take it out of its group if it waits there."""
        self.discard(sequence)
        self._front[sequence.sequence_id] = sequence
        self._front.move_to_end(sequence.sequence_id, last=False)

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence out, if it is in."""
        if self._front.pop(sequence.sequence_id, None) is None:
            self._arrived.pop(sequence.sequence_id, None)
            self._groups[group_of(sequence)].pop(sequence.sequence_id, None)

    @property
    def first_in_front(self) -> Sequence | None:
        return next(iter(self._front.values()), None)

    @property
    def first_arrived(self) -> Sequence | None:
        return next(iter(self._arrived.values()), None)

    def heads(self) -> dict[Group, Sequence]:
        """The first of every group that is not empty, those in front apart."""
        return {group: next(iter(members.values())) for group, members in self._groups.items() if members}

    def num_in_class(self, service_class: ServiceClass) -> int:
        """How many of a class wait for their first start."""
        return sum(len(self._groups[Group(service_class, lane)]) for lane in Lane)

    def counts(self) -> dict[Group, int]:
        """How many of each group wait for their first start."""
        return {group: len(members) for group, members in self._groups.items()}

    def place(self, sequence_id: SequenceId) -> QueuePlace | None:
        """Where a sequence stands in its class, by arrival; None unless it waits for its first start."""
        own = self._arrived.get(sequence_id)
        if own is None:
            return None
        of_class = (s for s in self._arrived.values() if s.service_class is own.service_class)
        position = next(i for i, s in enumerate(of_class, 1) if s.sequence_id == sequence_id)
        return QueuePlace(position=position, total=self.num_in_class(own.service_class))


def group_of(sequence: Sequence) -> Group:
    return Group(sequence.service_class, sequence.lane)
