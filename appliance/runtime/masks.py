"""Fills the masks of a step's constraints, slow ones while its forward pass runs. Knows bits; no grammar."""

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.engine.batch import ScheduledSequence
from appliance.engine.constraint import Constraint, ConstraintError
from appliance.engine.sequence import SequenceId

# Most take 6 us, the first after a forward pass 60, for it finds nothing in the caches; one that walks the
# whole vocabulary takes 400.
_QUICK_S = 200e-6
NOTHING_ALLOWED = "the grammar allows no next token; the model's vocabulary may lack what it needs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """What one sequence may choose, or why that is not known."""

    words: NDArray[np.uint32]  # a bit for each allowed token, the first in the lowest; none beyond
    error: str | None = None

    def allowed(self, vocab_size: int) -> NDArray[np.bool_]:
        """Return whether each token of the vocabulary may come next."""
        bits = np.unpackbits(self.words.view(np.uint8), count=vocab_size, bitorder="little")
        return bits.view(np.bool_)


Masks = dict[SequenceId, Mask]


class PendingMasks:
    """The masks of a step under way: those of `quick` are filled when they are asked for."""

    def __init__(self, filler: "MaskFiller", quick: "_Constrained", slow: "Future[_Filled] | None") -> None:
        self._filler = filler
        self._quick = quick
        self._slow = slow

    def result(self) -> Masks:
        filled = self._filler.fill(self._quick)
        if self._slow is not None:
            filled += self._slow.result()
        return self._filler.noted(filled)


class MaskFiller:
    """Fills quick masks once the forward pass is done, and slow ones on a thread of its own beside it.

    A mask takes some microseconds: a thread that wakes for it takes a core from the forward pass for longer.
    A sequence's mask is quick if its last one was. The first is not: where a part of a grammar is met for the
    first time, it may take milliseconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="masks")
        self._quick_ids: set[SequenceId] = set()

    def start(self, sequences: SequenceOf[ScheduledSequence]) -> PendingMasks | None:
        """Begin with the slow ones of those that have a constraint; None where nobody has."""
        quick: _Constrained = []
        slow: _Constrained = []
        for sequence in sequences:
            if sequence.constraint is not None:
                is_quick = sequence.sequence_id in self._quick_ids
                (quick if is_quick else slow).append((sequence.sequence_id, sequence.constraint))
        if not quick and not slow:
            return None
        return PendingMasks(self, quick, self._pool.submit(self.fill, slow) if slow else None)

    def fill(self, constrained: "_Constrained") -> "_Filled":
        """Fill masks, in the caller's thread, and tell the seconds that each took."""
        filled: _Filled = []
        for sequence_id, constraint in constrained:
            began_s = self._clock()
            mask = _mask(constraint)
            filled.append((sequence_id, mask, self._clock() - began_s))
        return filled

    def noted(self, filled: "_Filled") -> Masks:
        """The masks of one whole step, by which the next one's are sorted."""
        self._quick_ids = {sequence_id for sequence_id, _, seconds in filled if seconds <= _QUICK_S}
        return {sequence_id: mask for sequence_id, mask, _ in filled}


_Constrained = list[tuple[SequenceId, Constraint]]
_Filled = list[tuple[SequenceId, Mask, float]]  # with the seconds that it took


def _mask(constraint: Constraint) -> Mask:
    words = np.empty(constraint.num_mask_words, np.uint32)
    try:
        constraint.fill_mask(words.ctypes.data)
    except ConstraintError as error:
        return Mask(words=words, error=str(error))
    return Mask(words=words, error=None if words.any() else NOTHING_ALLOWED)
