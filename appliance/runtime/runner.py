"""Runs a Batch on a backend and samples: the engine's Runner over tensors. Knows no queue."""

from concurrent.futures import Future
from dataclasses import dataclass

import torch

from appliance.engine.batch import Batch, Pending, ScheduledSequence, SequenceOutput, StepResult
from appliance.model.decoder import ForwardOutputs
from appliance.runtime.backend import Backend
from appliance.runtime.inputs import build_inputs
from appliance.runtime.masks import MaskFiller, Masks
from appliance.runtime.sampler import sample


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step whose forward pass has been started."""

    batch: Batch
    sampled: tuple[ScheduledSequence, ...]
    outputs: ForwardOutputs
    masks: "Future[Masks] | None"


class ModelRunner:
    """Implements the engine's Runner protocol."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._mask_filler = MaskFiller()

    def launch(self, batch: Batch) -> PendingStep:
        inputs = build_inputs(
            batch, block_size=self._backend.kv_layout.block_size, device=self._backend.device
        )
        sampled = tuple(s for s in batch.sequences if s.sampling is not None)
        self._backend.copy_blocks(batch.block_copies)
        masks = self._mask_filler.start(sampled)
        outputs = self._backend.forward(inputs)
        return PendingStep(batch=batch, sampled=sampled, outputs=outputs, masks=masks)

    @torch.inference_mode()
    def collect(self, pending: Pending) -> StepResult:
        assert isinstance(pending, PendingStep)
        hidden_RH = pending.outputs.hidden
        masks = None if pending.masks is None else pending.masks.result()
        chosen = {o.sequence_id: o for o in sample(pending.outputs, pending.sampled, masks)}
        for row, sequence in enumerate(pending.sampled):
            assert sequence.sampling is not None
            if sequence.sampling.wants_hidden_state and hidden_RH is not None:
                chosen[sequence.sequence_id] = _with_hidden(chosen[sequence.sequence_id], hidden_RH[row])
        nothing = (SequenceOutput(sequence_id=s.sequence_id) for s in pending.batch.sequences)
        return StepResult(outputs=tuple(chosen.get(empty.sequence_id, empty) for empty in nothing))


def _with_hidden(output: SequenceOutput, hidden_H: torch.Tensor) -> SequenceOutput:
    return SequenceOutput(
        sequence_id=output.sequence_id,
        token_ids=output.token_ids,
        logprobs=output.logprobs,
        hidden_state=tuple(hidden_H.float().tolist()),
        failure=output.failure,
    )
