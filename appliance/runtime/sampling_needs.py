"""What choosing a sequence's next token takes, and what is said where it fails. Knows no logits."""

from appliance.engine.batch import FailureKind, ScheduledSequence, SequenceOutput, StepFailure
from appliance.engine.sequence import SamplingParams

# A backend may give this many best tokens in place of all logits.
MAX_CANDIDATES = 1024
NOT_FINITE = "the model produced values that are not finite; its file may be damaged, or --precision too low"


def has_own_rules(sequence: ScheduledSequence) -> bool:
    """Whether this sequence's logits are changed first, or asked for besides the token."""
    params = sequence.sampling
    assert params is not None
    changes_logits = params.has_penalties or bool(params.logit_bias) or holds_back_stops(sequence, params)
    return changes_logits or params.num_logprobs is not None or sequence.constraint is not None


def needs_logits(sequence: ScheduledSequence) -> bool:
    """Whether choosing this sequence's token takes more than its best tokens."""
    params = sequence.sampling
    assert params is not None
    if has_own_rules(sequence):
        return True
    return not params.is_greedy and not 0 < params.top_k <= MAX_CANDIDATES


def num_candidates(sequence: ScheduledSequence) -> int:
    """How many best tokens the choice and its log-probabilities read; 1 also tells of finite logits."""
    params = sequence.sampling
    assert params is not None
    if params.is_greedy or needs_logits(sequence):
        return max(1, params.num_logprobs or 0)
    return params.top_k


def holds_back_stops(sequence: ScheduledSequence, params: SamplingParams) -> bool:
    return sequence.num_output_tokens < params.min_tokens and bool(params.stop_token_ids)


def failed(sequence: ScheduledSequence, kind: FailureKind, message: str) -> SequenceOutput:
    failure = StepFailure(kind=kind, message=message)
    return SequenceOutput(sequence_id=sequence.sequence_id, failure=failure)
