"""How long an answer may become, and what can never run. Knows sizes; knows no queue."""

from appliance.engine.block_pool import BlockPool
from appliance.engine.sequence import SamplingParams
from appliance.errors import InvalidRequest, PromptTooLong


def answer_room(
    num_prompt_tokens: int, params: SamplingParams, *, pool: BlockPool, context_length: int
) -> int:
    """Return `params.max_tokens` cut to what the context and the whole pool leave.

    Raises PromptTooLong past the context, InvalidRequest for a sequence that can never run.
    """
    if num_prompt_tokens < 1:
        raise InvalidRequest("the prompt is empty; send at least one token", param="messages")
    if params.max_tokens is not None and params.max_tokens < 1:
        raise InvalidRequest(f"max_tokens is {params.max_tokens}; the least is 1", param="max_tokens")
    if num_prompt_tokens >= context_length:
        raise PromptTooLong(num_tokens=num_prompt_tokens, limit=context_length)
    capacity = pool.capacity_tokens
    if num_prompt_tokens >= capacity:
        raise InvalidRequest(
            f"the prompt has {num_prompt_tokens} tokens and the KV pool holds {capacity} "
            f"({pool.num_blocks} blocks of {pool.block_size}), one of which the answer needs; "
            f"shorten the prompt by {num_prompt_tokens + 1 - capacity} tokens or raise --kv-memory",
            param="messages",
        )
    room = min(context_length, capacity) - num_prompt_tokens
    return room if params.max_tokens is None else min(params.max_tokens, room)
