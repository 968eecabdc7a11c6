"""Finds the sequences that are late, to start or to end. Knows times; knows no queue and no blocks."""

import heapq

from appliance.engine.endings import is_late
from appliance.engine.sequence import Sequence, SequenceId


class Lateness:
    """The times at which somebody may be late, the next one first: a step asks about those alone."""

    def __init__(self) -> None:
        self._watched: dict[SequenceId, Sequence] = {}
        self._due: list[tuple[float, SequenceId]] = []  # those that ended stay until their time comes

    def watch(self, sequence: Sequence) -> None:
        """Remember when a new sequence must have started, and when it must have ended."""
        for due_s in (sequence.deadline_s, sequence.end_by_s):
            if due_s is not None:
                self._watched[sequence.sequence_id] = sequence
                heapq.heappush(self._due, (due_s, sequence.sequence_id))

    def ended(self, sequence: Sequence) -> None:
        self._watched.pop(sequence.sequence_id, None)

    def is_due(self, now_s: float) -> bool:
        """Whether `late` has somebody to look at."""
        return bool(self._due) and self._due[0][0] <= now_s

    def late(self, now_s: float) -> list[Sequence]:
        """Return those that are late since the last call, each of them once."""
        found: dict[SequenceId, Sequence] = {}
        while self._due and self._due[0][0] <= now_s:
            _, sequence_id = heapq.heappop(self._due)
            sequence = self._watched.get(sequence_id)
            if sequence is not None and is_late(sequence, now_s):
                found[sequence_id] = sequence
        return list(found.values())
