"""Computes prompts for what is known at their end: a hidden state, or how likely some tokens are.

Each is one engine sequence that ends with its prompt. Knows no protocol and no vectors.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.engine.sequence import FinishReason, SamplingParams, ServiceClass
from appliance.engine.stream import FinishEvent, TokenEvent
from appliance.errors import DeadlinePassed, GenerationFailed, NotReady, PromptTooLong
from appliance.model_pool import ResidentModel

# Enough to fill a step; the rest of a long list waits here and not in the queue, which others share.
_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReading:
    """What the model makes of one prompt. `scores` are the log-probabilities of the tokens asked for."""

    num_prompt_tokens: int
    hidden_state: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingTerms:
    """What holds for all prompts of a request. `field` is what the protocol calls them."""

    field: str
    deadline_s: float | None
    cache_salt: str
    service_class: ServiceClass
    scored_token_ids: tuple[int, ...] = ()
    wants_mean_state: bool = False  # over the prompt, in place of its last token's


async def read_prompts(
    model: ResidentModel, prompts: Sequence[list[int]], terms: ReadingTerms
) -> list[PromptReading]:
    """Return one reading per prompt, in order. The first failure ends all the others.

    Without `scored_token_ids` the readings have hidden states. Raises what `Engine.submit` raises,
    PromptTooLong before anything is computed, GenerationFailed, NotReady, DeadlinePassed.
    """
    for index, prompt in enumerate(prompts):
        if len(prompt) >= model.facts.context_length:
            error = PromptTooLong(num_tokens=len(prompt), limit=model.facts.context_length)
            error.param = f"{terms.field}[{index}]" if len(prompts) > 1 else terms.field
            raise error
    readings: dict[int, PromptReading] = {}
    todo = iter(enumerate(prompts))

    async def work() -> None:
        for index, prompt in todo:
            readings[index] = await _read_prompt(model, prompt, terms)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(prompts))):
                group.create_task(work())
    except BaseExceptionGroup as errors:  # one request, one error: the first
        raise errors.exceptions[0] from errors
    return [readings[index] for index in range(len(prompts))]


async def _read_prompt(model: ResidentModel, prompt: list[int], terms: ReadingTerms) -> PromptReading:
    params = SamplingParams(
        max_tokens=1,
        temperature=0.0,
        wants_hidden_state=not terms.scored_token_ids,
        wants_mean_state=terms.wants_mean_state,
        num_logprobs=0 if terms.scored_token_ids else None,
        scored_token_ids=terms.scored_token_ids,
    )
    token: TokenEvent | None = None
    with model.engine.submit(
        prompt,
        params,
        deadline_s=terms.deadline_s,
        cache_salt=terms.cache_salt,
        service_class=terms.service_class,
    ) as stream:
        async for event in stream:
            if isinstance(event, FinishEvent):
                _check_end(event, terms)
            else:
                token = event
    assert token is not None, "a sequence that ended well chose its token"
    return PromptReading(
        num_prompt_tokens=len(prompt),
        hidden_state=token.hidden_state or (),
        scores=tuple(value for _, value in token.logprobs[0].top) if token.logprobs else (),
    )


def _check_end(finish: FinishEvent, terms: ReadingTerms) -> None:
    match finish.reason:
        case FinishReason.ERROR | FinishReason.UNREAD:
            raise GenerationFailed("a prompt failed while it was computed, which the log shows")
        case FinishReason.DEADLINE:
            raise DeadlinePassed(waited_s=finish.queue_s, deadline_s=terms.deadline_s or finish.queue_s)
        case FinishReason.ABORT:
            raise NotReady("the work was ended because the appliance is stopping; ask again later")
