"""Cuts a step that did not fit into the device's memory into smaller ones. Knows no tensors.

A step may be run again in parts: each token's keys and values go where they went before.
"""

from dataclasses import replace

from appliance.engine.batch import Batch, FailureKind, SequenceOutput, StepFailure, StepResult

_TOO_LARGE = (
    "the device has no memory left for even one token of this sequence; close other programs that use it, "
    "or lower --kv-memory"
)


def halves(batch: Batch) -> tuple[Batch, Batch] | None:
    """Return two steps that come to the same, to be run in this order; None for a single token.

    Half of the sequences each, or of a lone sequence half of its new tokens, the first half unsampled.
    """
    sequences = batch.sequences
    if len(sequences) > 1:
        middle = len(sequences) // 2
        return Batch(sequences=sequences[:middle]), Batch(sequences=sequences[middle:])
    (whole,) = sequences
    middle = whole.num_new_tokens // 2
    if middle == 0:
        return None
    first = replace(whole, new_token_ids=whole.new_token_ids[:middle], sampling=None, constraint=None)
    second = replace(
        whole,
        new_token_ids=whole.new_token_ids[middle:],
        num_computed_tokens=whole.num_computed_tokens + middle,
    )
    return Batch(sequences=(first,)), Batch(sequences=(second,))


def joined(batch: Batch, first: StepResult, second: StepResult) -> StepResult:
    """Return the whole step's result from those of its halves."""
    if len(batch.sequences) > 1:
        return StepResult(outputs=first.outputs + second.outputs)
    if first.outputs[0].failure is not None:
        return first
    (early,), (late,) = first.outputs, second.outputs
    hidden_sum = early.hidden_sum or late.hidden_sum
    if early.hidden_sum and late.hidden_sum:
        hidden_sum = tuple(a + b for a, b in zip(early.hidden_sum, late.hidden_sum, strict=True))
    prompt_logprobs = early.prompt_logprobs + late.prompt_logprobs
    return StepResult(outputs=(replace(late, prompt_logprobs=prompt_logprobs, hidden_sum=hidden_sum),))


def too_large(batch: Batch) -> StepResult:
    """The result of a step that cannot be cut further."""
    failure = StepFailure(kind=FailureKind.OUT_OF_MEMORY, message=_TOO_LARGE)
    outputs = (SequenceOutput(sequence_id=s.sequence_id, failure=failure) for s in batch.sequences)
    return StepResult(outputs=tuple(outputs))
