"""When a sequence is over: out of time, or with its last token. Knows no queue."""

from collections.abc import Sequence as SequenceOf

from appliance.engine.sequence import FinishReason, Sequence


def is_late(sequence: Sequence, now_s: float) -> bool:
    """A fork's wait is over when its request's prompt is begun."""
    if sequence.end_by_s is not None and now_s >= sequence.end_by_s:
        return True
    first = sequence.fork_of or sequence
    has_started = first.started_s is not None or sequence.started_s is not None
    return not has_started and sequence.deadline_s is not None and now_s >= sequence.deadline_s


def reason_to_finish(sequence: Sequence) -> FinishReason | None:
    """Judge the sequence by its last token. A stop token counts only after `min_tokens` others."""
    params, token_ids = sequence.params, sequence.token_ids
    num_output_tokens = len(token_ids) - sequence.num_prompt_tokens
    if token_ids[-1] in params.stop_token_ids and num_output_tokens > params.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if num_output_tokens >= sequence.max_output_tokens else None


def take_tokens(sequence: Sequence, token_ids: SequenceOf[int]) -> FinishReason | None:
    """Append sampled tokens, and those that must follow, up to the one that ends it; say why it does.

    Forced tokens are computed in the next step together, like a piece of a prompt. Raises ConstraintError.
    """
    constraint = sequence.constraint
    while token_ids:
        for token_id in token_ids:
            sequence.token_ids.append(token_id)
            reason = reason_to_finish(sequence)
            if constraint is not None and reason is not FinishReason.STOP:
                constraint.advance([token_id])
                reason = FinishReason.STOP if constraint.is_done else reason
            if reason is not None:
                return reason
        if constraint is None or sequence.params.num_logprobs is not None:
            return None
        token_ids = constraint.forced()
    return None
