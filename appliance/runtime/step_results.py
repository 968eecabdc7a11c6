"""Puts together what a step found for each sequence. Knows no tensors."""

from collections.abc import Iterable
from dataclasses import replace

from appliance.engine.batch import ScheduledSequence, SequenceOutput, StepResult


def gathered(
    sequences: Iterable[ScheduledSequence],
    chosen: Iterable[SequenceOutput],
    read: Iterable[tuple[ScheduledSequence, SequenceOutput]],
) -> StepResult:
    """Return an output for every sequence: what was chosen for it, and what was read inside its prompt."""
    found = {s.sequence_id: SequenceOutput(sequence_id=s.sequence_id) for s in sequences}
    found.update((output.sequence_id, output) for output in chosen)
    for sequence, reading in read:
        found[sequence.sequence_id] = _merged(found[sequence.sequence_id], reading)
    return StepResult(outputs=tuple(found.values()))


def _merged(output: SequenceOutput, reading: SequenceOutput) -> SequenceOutput:
    """Add what was found inside the prompt to what the step gave."""
    if reading.failure is not None:
        return reading
    return replace(output, prompt_logprobs=reading.prompt_logprobs, hidden_sum=reading.hidden_sum)
