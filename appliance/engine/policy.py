"""Who of the waiting starts next: the seam where lanes and service classes plug in. Knows no blocks."""

from collections.abc import Collection
from typing import Protocol

from appliance.engine.sequence import Sequence


class WaitingOrder(Protocol):
    """Chooses from `waiting`, which is never empty: preempted sequences, then the rest by arrival.

    Called again in every step until the chosen one fits, so the choice must not count as a start.
    """

    def choose(self, waiting: Collection[Sequence]) -> Sequence: ...


class ArrivalOrder:
    """First come, first served; a preempted sequence resumes before anyone starts."""

    def choose(self, waiting: Collection[Sequence]) -> Sequence:
        return next(iter(waiting))
