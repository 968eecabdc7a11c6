"""Fills the masks of a step's constraints while its forward pass runs. Knows bits and tensors; no grammar."""

from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.engine.batch import ScheduledSequence
from appliance.engine.constraint import Constraint, ConstraintError
from appliance.engine.sequence import SequenceId

_NOTHING = torch.empty(0, dtype=torch.uint8)
NOTHING_ALLOWED = "the grammar allows no next token; the model's vocabulary may lack what it needs"


# So few tokens are looked up one by one; of more the whole row is read.
MOST_FEW = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """What one sequence may choose, or why that is not known."""

    allowed: torch.Tensor  # uint8 (tokens, in whole words): 1, or 0 where blocked
    few: torch.Tensor | None = None  # int64: the allowed tokens' ids, where they are few
    error: str | None = None


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
        return Mask(allowed=_NOTHING, error=str(error))
    if not words.any():
        return Mask(allowed=_NOTHING, error=NOTHING_ALLOWED)
    bits = _bits(words)
    is_few = np.count_nonzero(bits) <= MOST_FEW
    few = torch.from_numpy(np.flatnonzero(bits)) if is_few else None
    return Mask(allowed=torch.from_numpy(bits), few=few)


def _bits(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    bits: NDArray[np.uint8] = np.unpackbits(words.view(np.uint8), bitorder="little")
    return bits
