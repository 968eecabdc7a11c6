"""Runs a Batch in the native library and samples: the engine's Runner without tensors. Knows no queue."""

from dataclasses import dataclass, replace

from appliance.engine.batch import Batch, Pending, ScheduledSequence, SequenceOutput, StepResult
from appliance.runtime.cpu import CpuBackend
from appliance.runtime.layer_slices import LayerSlices
from appliance.runtime.masks import MaskFiller, Masks, PendingMasks
from appliance.runtime.native_rows import read_rows
from appliance.runtime.native_sampler import sample_natively
from appliance.runtime.native_step import NativeOutputs, build_step
from appliance.runtime.step_results import gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedSequences:
    """Sequences whose new tokens are computed, and what came of their rows."""

    sequences: tuple[ScheduledSequence, ...]
    outputs: NativeOutputs

    @property
    def sampled(self) -> tuple[ScheduledSequence, ...]:
        return _sampled(self.sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePending:
    """A step that was computed when it was launched; tokens are chosen when it is collected.

    Those of a slice are in `computed` once its last layers are, until then in `begun`.
    """

    batch: Batch
    computed: tuple[ComputedSequences, ...]
    masks: PendingMasks | None
    begun: tuple[ScheduledSequence, ...] = ()


class NativeRunner:
    """Implements the engine's Runner protocol."""

    def __init__(self, backend: CpuBackend) -> None:
        self._backend = backend
        self._mask_filler = MaskFiller()
        self._slices = LayerSlices(backend)

    def launch(self, batch: Batch) -> Pending:
        self._backend.copy_blocks(batch.block_copies)
        # Slow masks are filled while the library computes.
        masks = self._mask_filler.start(_sampled(batch.finished_sequences))
        whole = (self._compute(batch.sequences),) if batch.sequences else ()
        if batch.slice is None:
            return NativePending(batch=batch, computed=whole, masks=masks)
        chunks = batch.slice.sequences
        outputs = self._slices.run(batch.slice)
        if outputs is None:
            return NativePending(batch=batch, computed=whole, masks=masks, begun=chunks)
        computed = ComputedSequences(sequences=chunks, outputs=outputs)
        return NativePending(batch=batch, computed=(*whole, computed), masks=masks)

    def collect(self, pending: Pending) -> StepResult:
        assert isinstance(pending, NativePending)
        masks = None if pending.masks is None else pending.masks.result()
        found = [output for each in pending.computed for output in self._finish(each, masks).outputs]
        begun = (SequenceOutput(sequence_id=s.sequence_id) for s in pending.begun)
        return StepResult(outputs=(*found, *begun))

    def _compute(self, sequences: tuple[ScheduledSequence, ...]) -> ComputedSequences:
        step = build_step(sequences, block_size=self._backend.kv_layout.block_size)
        return ComputedSequences(sequences=sequences, outputs=self._backend.step(step))

    def _finish(self, computed: ComputedSequences, masks: Masks | None) -> StepResult:
        sampled = computed.sampled
        outputs = computed.outputs.rows(slice(len(sampled)))
        found = sample_natively(self._backend, outputs, sampled, masks)
        rows = enumerate(zip(sampled, found, strict=True))
        chosen = [_with_hidden(output, sequence, outputs, row) for row, (sequence, output) in rows]
        read = computed.outputs.rows(slice(len(sampled), None))
        return gathered(computed.sequences, chosen, read_rows(read, computed.sequences))


def _sampled(sequences: tuple[ScheduledSequence, ...]) -> tuple[ScheduledSequence, ...]:
    return tuple(s for s in sequences if s.sampling is not None)


def _with_hidden(
    output: SequenceOutput, sequence: ScheduledSequence, outputs: NativeOutputs, row: int
) -> SequenceOutput:
    assert sequence.sampling is not None
    if not sequence.sampling.wants_hidden_state or outputs.hidden is None:
        return output
    return replace(output, hidden_state=tuple(outputs.hidden[row].tolist()))
