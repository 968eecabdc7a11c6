"""A step of the native library and what comes of it, as arrays. Knows no queue and no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.engine.batch import ScheduledSequence
from appliance.runtime.flat_step import flatten
from kernels.cpu.structs import NativeBatch, TopTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeStep:
    """The work, and what is wanted of its R output rows besides their `num_candidates` best tokens."""

    batch: NativeBatch
    num_candidates: int
    wants_logits: bool
    wants_hidden: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOutputs:
    """Of the R output rows, in order; a row of `best` begins with id -1 where its logits are not finite."""

    best: TopTokens
    logits: NDArray[np.float32] | None  # (R, V)
    hidden: NDArray[np.float32] | None  # (R, H), after the final norm

    def rows(self, rows: slice) -> "NativeOutputs":
        """Return some of the rows, as views."""
        return NativeOutputs(
            best=TopTokens(self.best.ids[rows], self.best.values[rows]),
            logits=None if self.logits is None else self.logits[rows],
            hidden=None if self.hidden is None else self.hidden[rows],
        )


def build_step(sequences: Sequence[ScheduledSequence], *, block_size: int) -> NativeStep:
    """Return the sequences' step as the library takes it."""
    flat = flatten(sequences, block_size)
    arrays = NativeBatch(
        tokens=_int32(flat.token_ids),
        positions=_int32(flat.positions),
        slots=_int32(flat.slots),
        query_starts=_int32(flat.query_starts),
        context_lens=_int32(flat.context_lens),
        prompt_lens=_int32(flat.prompt_lens),
        block_tables=np.array(flat.block_tables, np.int32),
        logit_rows=_int32(flat.output_rows),
    )
    return NativeStep(
        batch=arrays,
        num_candidates=flat.num_candidates,
        wants_logits=flat.wants_logits,
        wants_hidden=flat.wants_hidden,
    )


def _int32(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)
