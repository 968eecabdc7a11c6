"""How streams and prompts share a step. Knows counts; knows no blocks.

Streams come first. Of the prompts' budget a quarter goes to the prompt that was admitted first, so that each
one ends; the rest goes to short ones before long ones, in each lane by class, and then in the order of
admission.
"""

from collections.abc import Sequence as SequenceOf

from appliance.engine.sequence import Lane, Sequence, ServiceClass

_PARTS = 4
# A grammar may force a text on a stream; a longer one waits its turn like a prompt.
_MOST_FORCED = 16
_CLASS_RANK = {service_class: rank for rank, service_class in enumerate(ServiceClass)}


def is_stream(sequence: Sequence) -> bool:
    """Whether a running sequence is about to choose its next token."""
    num_uncomputed = len(sequence.token_ids) - sequence.num_computed_tokens
    if num_uncomputed == 1:
        return True
    is_past_prompt = sequence.num_computed_tokens >= sequence.num_prompt_tokens
    return is_past_prompt and num_uncomputed <= _MOST_FORCED


def share_among_streams(
    streams: SequenceOf[Sequence], step_tokens: int
) -> tuple[list[tuple[Sequence, int]], int]:
    """How many tokens each stream gets, at least one, and how many the step has left."""
    left = step_tokens - len(streams)
    shares = []
    for stream in streams:
        more = len(stream.token_ids) - stream.num_computed_tokens - 1
        if more:
            more = min(more, left)
            left -= more
        shares.append((stream, 1 + more))
    return shares, left


def share_out(prompts: SequenceOf[Sequence], budget: int) -> list[tuple[Sequence, int]]:
    """How many tokens each prompt gets, those that get some; `prompts` stand in order of admission."""
    if not prompts or budget < 1:
        return []
    first = prompts[0]
    kept = _kept(first, budget)
    left = budget - kept
    tokens = {first.sequence_id: kept}
    for prompt in sorted(prompts, key=_rank):
        has = tokens.get(prompt.sequence_id, 0)
        more = min(left, prompt.num_uncomputed_tokens - has)
        tokens[prompt.sequence_id] = has + more
        left -= more
    return [(p, tokens[p.sequence_id]) for p in prompts if tokens[p.sequence_id]]


def has_room(candidate: Sequence, prompts: SequenceOf[Sequence], budget: int) -> bool:
    """Whether a prompt may start now: it would get tokens in this step, or is the only one of its rank.

    The latter waits for its turn among the running, where it is first in time: those ahead of it in rank
    may never leave any budget.
    """
    if budget < 1:
        return False
    rank = _rank(candidate)
    ahead = sum(p.num_uncomputed_tokens for p in prompts if _rank(p) <= rank)
    is_first_behind = bool(prompts) and _rank(prompts[0]) > rank
    kept = _kept(prompts[0], budget) if is_first_behind else 0
    return ahead + kept < budget or all(_rank(p) < rank for p in prompts)


def _kept(first: Sequence, budget: int) -> int:
    return min(first.num_uncomputed_tokens, -(-budget // _PARTS))


def _rank(sequence: Sequence) -> tuple[bool, int]:
    return sequence.lane is Lane.LONG, _CLASS_RANK[sequence.service_class]
