"""OpenAI's routes: models, chat and text completions. Decodes, checks and starts; knows no sockets."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from litestar import Request, Response, post, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from appliance.engine.sequence import SamplingParams, ServiceClass
from appliance.errors import UnknownModel
from appliance.model_library import LibraryModel
from appliance.model_pool import ResidentModel
from appliance.server.access import access_of
from appliance.server.answers import Answer, AnswerFormat
from appliance.server.appliance_state import ApplianceState
from appliance.server.cache_salt import cache_salt
from appliance.server.chat_turn import compiled_content, prepare_chat, with_system
from appliance.server.error_responses import json_response
from appliance.server.generation import GenerationRequest
from appliance.server.generation_group import GenerationGroup, start_generations
from appliance.server.off_loop import run_text_work
from appliance.server.openai_defaults import recommended, with_defaults
from appliance.server.openai_formats import AnswerIdentity, ChatFormat, CompletionFormat, new_identity
from appliance.server.openai_logprobs import LogprobWriter
from appliance.server.openai_output import content_grammar
from appliance.server.openai_params import (
    best_of,
    chat_params,
    checked_deadline,
    completion_params,
    for_choice,
    num_choices,
    stop_strings,
    wants_prompt_only,
    wants_usage,
)
from appliance.server.openai_prompts import chat_turn, completion_prompts, encode_prompts
from appliance.server.openai_schemas import (
    ChatRequest,
    CompletionRequest,
    ModelCard,
    ModelList,
    SamplingFields,
)
from appliance.server.request_body import BodyDecoder, read_body
from appliance.server.request_tracing import answer_id
from appliance.server.service_tier import served_tier, service_class

_LOOK = (HttpMethod.GET, HttpMethod.HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request as it came in: for which model, when, and what its prompt field is called."""

    model: ResidentModel
    received_s: float
    prompt_field: str
    cache_salt: str  # prompts share computed blocks only under the same one
    service_class: ServiceClass
    end_within_s: float | None


class OpenAI:
    """Serves both completion endpoints. Holds what outlives a request: the decoders and the state."""

    def __init__(self, state: ApplianceState) -> None:
        self._state = state
        self._chat_decoder = BodyDecoder(ChatRequest)
        self._completion_decoder = BodyDecoder(CompletionRequest)

    async def chat(self, request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer `POST /v1/chat/completions`."""
        body = await read_body(request.scope, request.receive, self._state.limits)
        received_s = self._state.latency.clock()
        wanted = self._chat_decoder.decode(body)
        model = await self._state.loaded_model(wanted.model)
        wanted = with_defaults(wanted, model.defaults.settled)
        params = chat_params(wanted, model.tokenizer)
        num_per_prompt = num_choices(wanted, num_prompts=1, limit=self._state.limits.max_choices)
        stop = stop_strings(wanted)
        turn = await run_text_work(len(body), partial(chat_turn, wanted))
        prepared = await prepare_chat(model, with_system(model, turn))
        served = access_of(request.scope).class_for(service_class(wanted.service_tier))
        identity = _identity("chatcmpl", model, wanted, served)
        answer_format = ChatFormat(identity, _logprob_writer(model, params))
        arrival = Arrival(
            model=model,
            received_s=received_s,
            prompt_field="messages",
            cache_salt=cache_salt(request.scope, wanted),
            service_class=served,
            end_within_s=checked_deadline(wanted),
        )
        requests = [
            GenerationRequest(
                prompt_token_ids=prepared.prompt_token_ids,
                params=for_choice(params, choice),
                stop=stop,
                rules=prepared.rules,
                grammar=prepared.grammar,
            )
            for choice in range(num_per_prompt)
        ]
        group = self._start(arrival, requests, num_per_prompt)
        return self._answer(group, answer_format, identity, is_streamed=bool(wanted.stream))

    async def complete(self, request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer `POST /v1/completions`: choices are ordered by prompt, then by choice."""
        body = await read_body(request.scope, request.receive, self._state.limits)
        received_s = self._state.latency.clock()
        wanted = self._completion_decoder.decode(body)
        model = await self._state.loaded_model(wanted.model)
        wanted = with_defaults(wanted, model.defaults.settled)
        params = completion_params(wanted, model.tokenizer)
        given = completion_prompts(wanted.prompt)
        made = best_of(wanted, num_prompts=len(given), limit=self._state.limits.max_choices)
        num_per_prompt = made.num_made
        stop = stop_strings(wanted)
        prompts = await encode_prompts(model, given, wanted.suffix)
        content = await run_text_work(len(body), partial(content_grammar, wanted))
        grammar = await compiled_content(model, content)
        served = access_of(request.scope).class_for(service_class(wanted.service_tier))
        identity = _identity("cmpl", model, wanted, served)
        texts = tuple(_text_of(model, prompt) for prompt in given for _ in range(num_per_prompt))
        answer_format = CompletionFormat(
            identity,
            _logprob_writer(model, params),
            texts,
            tuple(prompt for prompt in prompts for _ in range(num_per_prompt)),
            echoes=bool(wanted.echo),
            best_of=made,
        )
        if made.is_choosing and params.num_logprobs is None:
            params = replace(params, num_logprobs=0)
        arrival = Arrival(
            model=model,
            received_s=received_s,
            prompt_field="prompt",
            cache_salt=cache_salt(request.scope, wanted),
            service_class=served,
            end_within_s=checked_deadline(wanted),
        )
        requests = [
            GenerationRequest(
                prompt_token_ids=prompt,
                params=for_choice(params, choice),
                stop=stop,
                grammar=grammar,
                is_prompt_only=wants_prompt_only(wanted),
            )
            for prompt in prompts
            for choice in range(num_per_prompt)
        ]
        group = self._start(arrival, requests, num_per_prompt)
        return self._answer(group, answer_format, identity, is_streamed=bool(wanted.stream))

    def _start(
        self, arrival: Arrival, requests: Sequence[GenerationRequest], num_per_prompt: int
    ) -> GenerationGroup:
        return start_generations(
            arrival.model,
            requests,
            num_per_prompt=num_per_prompt,
            latency=self._state.latency,
            received_s=arrival.received_s,
            deadline_s=self._state.limits.deadline_s,
            prompt_field=arrival.prompt_field,
            cache_salt=arrival.cache_salt,
            service_class=arrival.service_class,
            end_within_s=arrival.end_within_s,
        )

    def _answer(
        self,
        group: GenerationGroup,
        answer_format: AnswerFormat,
        identity: AnswerIdentity,
        *,
        is_streamed: bool,
    ) -> ASGIApp:
        return Answer(
            group,
            answer_format,
            state=self._state,
            request_id=identity.request_id,
            model_id=identity.model_id,
            is_streamed=is_streamed,
        )


def openai_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handlers of `/v1/`."""
    api = OpenAI(state)

    @post("/v1/chat/completions", status_code=200)
    async def create_chat_completion(request: Request[Any, Any, Any]) -> ASGIApp:
        return await api.chat(request)

    @post("/v1/completions", status_code=200)
    async def create_completion(request: Request[Any, Any, Any]) -> ASGIApp:
        return await api.complete(request)

    @route("/v1/models", http_method=_LOOK)
    async def list_models() -> Response[bytes]:
        return json_response(msgspec.json.encode(ModelList(data=await _cards(state))))

    @route("/v1/models/{model_id:path}", http_method=_LOOK)
    async def get_model(request: Request[Any, Any, Any]) -> Response[bytes]:
        # A path parameter keeps the slashes that a model's name may hold, and a leading one of its own.
        name = str(request.path_params["model_id"]).removeprefix("/")
        return json_response(msgspec.json.encode(await _card_of(state, name)))

    return [create_chat_completion, create_completion, list_models, get_model]


def _identity(
    prefix: str, model: ResidentModel, wanted: SamplingFields, served: ServiceClass
) -> AnswerIdentity:
    request_id = answer_id(f"{prefix}-")
    return new_identity(
        request_id,
        model.model_id,
        wants_usage=wants_usage(wanted),
        service_tier=served_tier(wanted.service_tier, served),
    )


def _logprob_writer(model: ResidentModel, params: SamplingParams) -> LogprobWriter | None:
    if params.num_logprobs is None:
        return None
    return LogprobWriter(model.tokenizer, params.num_logprobs)


def _text_of(model: ResidentModel, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)


async def _cards(state: ApplianceState) -> list[ModelCard]:
    """What answers now, then what is loaded when it is asked for."""
    cards = {model.model_id: _card(model) for model in state.pool.list()}
    found = await asyncio.to_thread(state.library.models) if state.library else ()
    for model in found:
        cards.setdefault(model.name, _library_card(model))
    return list(cards.values())


async def _card_of(state: ApplianceState, name: str) -> ModelCard:
    """Raises UnknownModel."""
    try:
        return _card(state.resident_model(name))
    except UnknownModel:
        if state.library is None:
            raise
    return _library_card(await asyncio.to_thread(state.library.find, name))


def _library_card(model: LibraryModel) -> ModelCard:
    entry = model.entry
    return ModelCard(
        id=model.name,
        created=int(model.modified_s),
        max_model_len=entry.context_length if entry else None,
        recommended=msgspec.to_builtins(entry.sampling) if entry else {},
    )


def _card(model: ResidentModel) -> ModelCard:
    return ModelCard(
        id=model.model_id,
        created=model.created,
        max_model_len=model.facts.context_length,
        recommended=recommended(model.defaults.options),
    )
