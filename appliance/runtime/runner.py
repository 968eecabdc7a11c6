"""Runs a Batch on a backend of tensors and samples: the engine's Runner over them. Knows no queue."""

import logging
from dataclasses import dataclass, replace

import torch

from appliance.engine.batch import (
    Batch,
    FailureKind,
    Pending,
    ScheduledSequence,
    SequenceOutput,
    StepResult,
)
from appliance.engine.sequence import SamplingParams, SequenceId
from appliance.model.decoder import ForwardInputs, ForwardOutputs
from appliance.runtime.backend import Backend, LeadingBackend
from appliance.runtime.batch_sampler import NOT_FINITE_ID, choose_rows
from appliance.runtime.chosen_tokens import ChosenTokens
from appliance.runtime.device_faults import device_faults
from appliance.runtime.host_pages import SwappingBackend
from appliance.runtime.inputs import build_inputs
from appliance.runtime.masks import MaskFiller, Masks, PendingMasks
from appliance.runtime.prompt_rows import read_rows, split
from appliance.runtime.row_rules import RowRules
from appliance.runtime.sampler import sample
from appliance.runtime.sampling_needs import NOT_FINITE, failed, has_own_rules
from appliance.runtime.step_parts import halves, joined, too_large
from appliance.runtime.step_results import gathered

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step whose forward pass has been started, and the choice of tokens where the logits are."""

    batch: Batch
    sampled: tuple[ScheduledSequence, ...]
    outputs: ForwardOutputs
    read: ForwardOutputs  # rows inside prompts
    masks: PendingMasks | None
    chosen: ChosenTokens | None

    @property
    def is_plain(self) -> bool:
        """Whether all that is asked of it is the tokens, by rules that hold where the logits are."""
        wants_more = any(has_own_rules(s) or _params(s).wants_hidden_state for s in self.sampled)
        is_read = any(s.prompt_read is not None for s in self.batch.sequences)
        return self.chosen is not None and not wants_more and not is_read


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStep:
    """A step that was run in parts when it was launched."""

    batch: Batch
    result: StepResult


class ModelRunner:
    """The engine's Runner and LeadingRunner. A step that does not fit into memory is run in parts."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._leading = backend if isinstance(backend, LeadingBackend) else None
        self._mask_filler = MaskFiller()

    def launch(self, batch: Batch) -> Pending:
        assert batch.slice is None, "backends of tensors compute whole steps only"
        with device_faults():
            # Once, whatever becomes of the step: a block copied again would lack what was written since.
            if batch.saves or batch.restores:
                assert isinstance(self._backend, SwappingBackend), "this backend has no places"
                self._backend.swap_blocks(batch.saves, batch.restores)
            self._backend.copy_blocks(batch.block_copies)
            return self._start(batch) or FinishedStep(batch=batch, result=self._run_in_parts(batch))

    def collect(self, pending: Pending) -> StepResult:
        if isinstance(pending, FinishedStep):
            return pending.result
        assert isinstance(pending, PendingStep)
        with device_faults():
            return self._finish(pending) or self._run_in_parts(pending.batch)

    def leads(self, pending: Pending) -> bool:
        is_able = self._leading is not None and self._leading.has_graphs
        return is_able and isinstance(pending, PendingStep) and pending.is_plain

    def launch_next(self, pending: Pending, batch: Batch) -> Pending | None:
        assert isinstance(pending, PendingStep)
        with device_faults():
            return self._start(batch, after=pending)

    def _start(self, batch: Batch, *, after: PendingStep | None = None) -> PendingStep | None:
        """Start the step, with the tokens of the one it comes `after`; None where memory does not suffice."""
        inputs = build_inputs(batch, block_size=self._backend.kv_layout.block_size)
        sampled = tuple(s for s in batch.sequences if s.sampling is not None)
        masks = self._mask_filler.start(sampled)
        try:
            found = self._backend.forward(inputs) if after is None else self._follow(inputs, sampled, after)
            return None if found is None else _started(batch, sampled, found, masks)
        except torch.OutOfMemoryError:
            return None

    def _follow(
        self, inputs: ForwardInputs, sampled: tuple[ScheduledSequence, ...], after: PendingStep
    ) -> ForwardOutputs | None:
        assert self._leading is not None
        assert after.chosen is not None
        row_of = {s.sequence_id: row for row, s in enumerate(after.sampled)}
        token_ids = after.chosen.on_device([row_of[s.sequence_id] for s in sampled])
        return self._leading.follow(inputs, token_ids)

    @torch.inference_mode()
    def _finish(self, pending: PendingStep) -> StepResult | None:
        """Read what was chosen; None where there is no memory to choose by a sequence's own rules."""
        masks = None if pending.masks is None else pending.masks.result()
        try:
            outputs = _sampled(pending, masks)
        except torch.OutOfMemoryError:
            return None
        by_id = {output.sequence_id: output for output in outputs}
        hidden_RH = pending.outputs.hidden
        for row, sequence in enumerate(pending.sampled):
            if _params(sequence).wants_hidden_state and hidden_RH is not None:
                output = by_id[sequence.sequence_id]
                hidden_state = tuple(hidden_RH[row].float().tolist())
                by_id[sequence.sequence_id] = replace(output, hidden_state=hidden_state)
        return gathered(pending.batch.sequences, by_id.values(), read_rows(pending.read, pending.batch))

    def _run_in_parts(self, batch: Batch) -> StepResult:
        if self._backend.device.type == "cuda":
            torch.cuda.empty_cache()
        parts = halves(batch)
        if parts is None:
            return too_large(batch)
        logger.warning("no memory for a step of %d tokens; it is run in two parts", batch.num_new_tokens)
        return joined(batch, self._run_part(parts[0]), self._run_part(parts[1]))

    def _run_part(self, batch: Batch) -> StepResult:
        pending = self._start(batch)
        result = None if pending is None else self._finish(pending)
        return result or self._run_in_parts(batch)


def _started(
    batch: Batch,
    sampled: tuple[ScheduledSequence, ...],
    everything: ForwardOutputs,
    masks: PendingMasks | None,
) -> PendingStep:
    outputs, read = split(everything, len(sampled))
    return PendingStep(
        batch=batch,
        sampled=sampled,
        outputs=outputs,
        read=read,
        masks=masks,
        chosen=_choose(outputs, sampled),
    )


@torch.inference_mode()
def _choose(outputs: ForwardOutputs, sampled: tuple[ScheduledSequence, ...]) -> ChosenTokens | None:
    """Choose for all rows where the logits are; None where no row is to be chosen for."""
    if not sampled:
        return None
    assert outputs.logits is not None
    likeliest = RowRules(is_greedy=True)  # holds the place of a row that `sample` treats
    rules = [likeliest if has_own_rules(s) else RowRules.of(s) for s in sampled]
    return ChosenTokens(choose_rows(outputs.logits, rules))


def _sampled(pending: PendingStep, masks: Masks | None) -> list[SequenceOutput]:
    """One output per sampled sequence, in any order. Reads the device once, but for sequences' own rules."""
    if pending.chosen is None:
        return []
    rows = [row for row, sequence in enumerate(pending.sampled) if has_own_rules(sequence)]
    outputs: list[SequenceOutput] = []
    if rows:
        assert pending.outputs.logits is not None
        own = ForwardOutputs(logits=pending.outputs.logits[rows], hidden=None)
        outputs = sample(own, [pending.sampled[row] for row in rows], masks)
    own_ids: set[SequenceId] = {output.sequence_id for output in outputs}
    for sequence, token_id in zip(pending.sampled, pending.chosen.read(), strict=True):
        if sequence.sequence_id not in own_ids:
            outputs.append(_output(sequence, token_id))
    return outputs


def _params(sequence: ScheduledSequence) -> SamplingParams:
    assert sequence.sampling is not None
    return sequence.sampling


def _output(sequence: ScheduledSequence, token_id: int) -> SequenceOutput:
    if token_id == NOT_FINITE_ID:
        return failed(sequence, FailureKind.NOT_FINITE, NOT_FINITE)
    return SequenceOutput(sequence_id=sequence.sequence_id, token_ids=(token_id,))
