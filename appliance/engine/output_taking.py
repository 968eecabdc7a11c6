"""What a step's output makes of a sequence: tokens appended, and whether it is over. Knows no queue."""

from appliance.engine.batch import FailureKind, SequenceOutput, StepFailure
from appliance.engine.constraint import ConstraintError
from appliance.engine.endings import take_tokens
from appliance.engine.prompt_reading import PromptReadings
from appliance.engine.sequence import FinishReason, Sequence
from appliance.engine.sequence_update import SequenceUpdate


def take_output(
    sequence: Sequence, output: SequenceOutput, readings: PromptReadings, now_s: float
) -> tuple[SequenceUpdate, FinishReason | None]:
    """Append the sampled tokens, and those that must follow, up to the one that ends the sequence."""
    first = len(sequence.token_ids)
    prompt_logprobs = readings.logprobs(sequence) if first == sequence.num_prompt_tokens else ()
    hidden_state = output.hidden_state
    if hidden_state is not None and sequence.params.wants_mean_state:
        hidden_state = readings.mean_state(sequence, hidden_state)
    failure = None
    try:
        reason = take_tokens(sequence, output.token_ids)
    except ConstraintError as error:
        failure = StepFailure(kind=FailureKind.CONSTRAINT, message=str(error))
        reason, sequence.failure = FinishReason.ERROR, failure.message
    is_as_sampled = reason is None and sequence.constraint is None
    taken = output.token_ids if is_as_sampled else tuple(sequence.token_ids[first:])
    if taken:
        sequence.note_tokens(now_s)
    is_stopped = reason is FinishReason.STOP
    update = SequenceUpdate(
        sequence=sequence,
        token_ids=taken,
        logprobs=output.logprobs and output.logprobs[: len(taken)],
        hidden_state=hidden_state if taken else None,
        ends_with_stop_token=is_stopped and taken[-1] in sequence.params.stop_token_ids,
        failure=failure,
        prompt_logprobs=prompt_logprobs if taken else (),
    )
    return update, reason
