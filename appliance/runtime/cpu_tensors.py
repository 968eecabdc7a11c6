"""Steps of the native backend from and to tensors: for who compares backends. Serving goes without."""

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.decoder import Candidates, ForwardInputs, ForwardOutputs
from appliance.runtime.native_step import NativeOutputs, NativeStep
from kernels.cpu.structs import NativeBatch


def native_step(inputs: ForwardInputs) -> NativeStep:
    """Return the same step as arrays of int32."""
    ragged = inputs.ragged
    batch = NativeBatch(
        tokens=_int32(inputs.token_ids),
        positions=_int32(inputs.positions),
        slots=_int32(inputs.slots),
        query_starts=_int32(ragged.query_starts),
        context_lens=_int32(ragged.context_lens),
        prompt_lens=np.array(inputs.prompt_lens or (0,) * ragged.num_sequences, np.int32),
        block_tables=_int32(ragged.block_tables),
        logit_rows=_int32(inputs.output_rows),
    )
    return NativeStep(
        batch=batch,
        num_candidates=inputs.num_candidates,
        wants_logits=inputs.wants_logits,
        wants_hidden=inputs.wants_hidden,
    )


def tensor_outputs(outputs: NativeOutputs) -> ForwardOutputs:
    """Return the same outputs as tensors, in the same memory."""
    best = outputs.best
    return ForwardOutputs(
        logits=None if outputs.logits is None else torch.from_numpy(outputs.logits),
        hidden=None if outputs.hidden is None else torch.from_numpy(outputs.hidden),
        candidates=Candidates(ids=torch.from_numpy(best.ids), logits=torch.from_numpy(best.values)),
    )


def _int32(values: torch.Tensor) -> NDArray[np.int32]:
    array: NDArray[np.int32] = values.numpy().astype(np.int32, copy=False)
    return array
