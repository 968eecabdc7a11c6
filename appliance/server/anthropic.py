"""Anthropic's routes: messages, and how many tokens a message would have. Decodes, checks and starts."""

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from appliance.engine.sequence import SamplingParams, ServiceClass
from appliance.errors import InvalidRequest
from appliance.model_pool import ResidentModel
from appliance.server.access import access_of
from appliance.server.answers import Answer
from appliance.server.anthropic_formats import STREAM, AnthropicFormat, MessageIdentity
from appliance.server.anthropic_prompts import message_turn
from appliance.server.anthropic_schemas import CountRequest, MessagesRequest, TokenCount
from appliance.server.appliance_state import ApplianceState
from appliance.server.cache_salt import tenant_salt
from appliance.server.chat_turn import PreparedChat, prepare_chat, rendered_chat
from appliance.server.error_responses import json_response
from appliance.server.generation import GenerationRequest
from appliance.server.generation_group import start_generations
from appliance.server.off_loop import run_text_work
from appliance.server.ollama_options import checked_options, sampling_params
from appliance.server.request_body import BodyDecoder, read_body
from appliance.server.request_tracing import answer_id

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**63 - 1),
}
_MORE_THAN_ANY = 2**31 - 1
# Options of a derived model that the request itself decides here.
_NOT_OURS: dict[str, None] = dict.fromkeys(("num_predict", "num_ctx", "stop"))
_MAX_STOPS, _MAX_STOP_CHARS = 32, 1024


class Anthropic:
    """Serves messages. Holds what outlives a request: the decoders and the state."""

    def __init__(self, state: ApplianceState) -> None:
        self._state = state
        self._decoder = BodyDecoder(MessagesRequest)
        self._count_decoder = BodyDecoder(CountRequest)

    async def create(self, request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer `POST /v1/messages`."""
        body = await read_body(request.scope, request.receive, self._state.limits)
        received_s = self._state.latency.clock()
        wanted = self._decoder.decode(body)
        model = await self._state.loaded_model(wanted.model)
        params = _params(model, wanted)
        stop = _stop_sequences(wanted)
        turn, prefill = await run_text_work(len(body), partial(message_turn, model, wanted))
        prepared = await prepare_chat(model, turn)
        prompt = [*prepared.prompt_token_ids, *_plain_tokens(model, prefill)]
        user = wanted.metadata.user_id if wanted.metadata else None
        group = start_generations(
            model,
            [_generation(prompt, params, stop, prepared)],
            num_per_prompt=1,
            latency=self._state.latency,
            received_s=received_s,
            deadline_s=self._state.limits.deadline_s,
            prompt_field="messages",
            cache_salt=tenant_salt(request.scope, user or ""),
            service_class=access_of(request.scope).class_for(ServiceClass.SILVER),
        )
        identity = MessageIdentity(
            message_id=answer_id("msg_"),
            model=wanted.model,
            num_prompt_tokens=len(prompt),
            max_tokens=wanted.max_tokens,
        )
        return Answer(
            group,
            AnthropicFormat(identity),
            state=self._state,
            request_id=identity.message_id,
            model_id=model.model_id,
            is_streamed=bool(wanted.stream),
            stream_kind=STREAM,
        )

    async def count(self, request: Request[Any, Any, Any]) -> TokenCount:
        """Answer `POST /v1/messages/count_tokens`: what the prompt of such a message would have."""
        body = await read_body(request.scope, request.receive, self._state.limits)
        wanted = self._count_decoder.decode(body)
        model = await self._state.loaded_model(wanted.model)
        turn, prefill = await run_text_work(len(body), partial(message_turn, model, wanted))
        prompt = await rendered_chat(model, turn)
        return TokenCount(input_tokens=len(prompt) + len(_plain_tokens(model, prefill)))


def anthropic_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handlers of `/v1/messages`."""
    api = Anthropic(state)

    @post("/v1/messages", status_code=200)
    async def create_message(request: Request[Any, Any, Any]) -> ASGIApp:
        return await api.create(request)

    @post("/v1/messages/count_tokens", status_code=200)
    async def count_tokens(request: Request[Any, Any, Any]) -> Response[bytes]:
        return json_response(msgspec.json.encode(await api.count(request)))

    return [create_message, count_tokens]


def _generation(
    prompt: list[int], params: SamplingParams, stop: tuple[str, ...], prepared: PreparedChat
) -> GenerationRequest:
    return GenerationRequest(
        prompt_token_ids=prompt, params=params, stop=stop, rules=prepared.rules, grammar=prepared.grammar
    )


def _plain_tokens(model: ResidentModel, text: str) -> list[int]:
    return model.tokenizer.encode(text, parse_special=False, add_bos=False) if text else []


def _params(model: ResidentModel, wanted: MessagesRequest) -> SamplingParams:
    """Raises InvalidRequest naming the field and its bounds."""
    if wanted.max_tokens < 1:
        raise InvalidRequest(f"'max_tokens' is {wanted.max_tokens}; the least is 1", param="max_tokens")
    budget = wanted.thinking.budget_tokens if wanted.thinking else None
    if budget is not None and not 1 <= budget < wanted.max_tokens:
        raise InvalidRequest(
            f"'thinking.budget_tokens' is {budget}; it must be at least 1 and below 'max_tokens', "
            f"{wanted.max_tokens}",
            param="thinking.budget_tokens",
        )
    for name, (least, most) in _RANGES.items():
        value = getattr(wanted, name)
        if value is not None and not least <= value <= most:
            raise InvalidRequest(f"'{name}' is {value}; it must lie between {least} and {most}", param=name)
    # What the client leaves open is the model's own: options that its makers or its derivation recommend.
    given = {name: getattr(wanted, name) for name in _RANGES if getattr(wanted, name) is not None}
    options = checked_options({"temperature": 1.0, **model.defaults.options, **given, **_NOT_OURS})
    params = sampling_params(
        options, num_prompt_tokens=0, stop_token_ids=model.tokenizer.stop_token_ids, num_logprobs=None
    )
    return replace(params, max_tokens=min(wanted.max_tokens, _MORE_THAN_ANY))


def _stop_sequences(wanted: MessagesRequest) -> tuple[str, ...]:
    """Empty ones are ignored. Raises InvalidRequest past the limits."""
    given = wanted.stop_sequences or []
    if len(given) > _MAX_STOPS or max(map(len, given), default=0) > _MAX_STOP_CHARS:
        raise InvalidRequest(
            f"'stop_sequences' may hold {_MAX_STOPS} texts of at most {_MAX_STOP_CHARS} characters; "
            "send fewer or shorter ones",
            param="stop_sequences",
        )
    return tuple(text for text in given if text)
