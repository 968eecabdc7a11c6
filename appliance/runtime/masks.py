"""Fills the masks of a step's constraints while its forward pass runs. Knows bits; no grammar."""

from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.engine.batch import ScheduledSequence
from appliance.engine.constraint import Constraint, ConstraintError
from appliance.engine.sequence import SequenceId

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


class MaskFiller:
    """One thread that computes masks, all of a step in one go."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="masks")

    def start(self, sequences: SequenceOf[ScheduledSequence]) -> "Future[Masks] | None":
        """Begin with those that have a constraint; None where nobody has."""
        constrained = [(s.sequence_id, s.constraint) for s in sequences if s.constraint is not None]
        return self._pool.submit(_fill, constrained) if constrained else None


def _fill(constrained: list[tuple[SequenceId, Constraint]]) -> Masks:
    return {sequence_id: _mask(constraint) for sequence_id, constraint in constrained}


def _mask(constraint: Constraint) -> Mask:
    words = np.empty(constraint.num_mask_words, np.uint32)
    try:
        constraint.fill_mask(words.ctypes.data)
    except ConstraintError as error:
        return Mask(words=words, error=str(error))
    return Mask(words=words, error=None if words.any() else NOTHING_ALLOWED)
