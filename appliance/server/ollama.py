"""Ollama's routes that make text: generate and chat, and loading and unloading by empty requests.

Decodes, checks and starts; knows no sockets.
"""

from dataclasses import dataclass
from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from appliance.engine.sequence import SamplingParams, ServiceClass
from appliance.errors import InvalidRequest, UnknownModel
from appliance.model_pool import ResidentModel
from appliance.server.access import access_of
from appliance.server.answers import Answer
from appliance.server.appliance_state import ApplianceState
from appliance.server.cache_salt import tenant_salt
from appliance.server.chat_turn import PreparedChat, prepare_chat
from appliance.server.generation import GenerationRequest
from appliance.server.generation_group import GenerationGroup, start_generations
from appliance.server.ollama_formats import (
    ContextOf,
    OllamaChatFormat,
    OllamaFormat,
    OllamaGenerateFormat,
    Times,
    chat_note,
    generate_note,
)
from appliance.server.ollama_options import (
    keep_alive_s,
    logprobs_wanted,
    read_options,
    sampling_params,
    stop_strings,
)
from appliance.server.ollama_prompts import ollama_turn, prepare_generate, template_messages
from appliance.server.ollama_schemas import (
    GenerateRequest,
    GenerationFields,
    KeepAlive,
    ModelRequest,
    OllamaChatRequest,
)
from appliance.server.openai_logprobs import LogprobWriter
from appliance.server.request_body import BodyDecoder, read_body
from appliance.server.request_tracing import answer_id
from appliance.server.stream_writer import send_json


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    """When a request came in and its model was there, and whose it is."""

    received_s: float
    loaded_s: float
    salt: str
    service_class: ServiceClass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A generation under way."""

    group: GenerationGroup
    logprobs: LogprobWriter | None
    arrival: _Arrival


class ModelMissing(UnknownModel):
    """No model of that name, in the words that Ollama's clients look for."""

    def __init__(self, name: str, *, remedy: str = "") -> None:
        super().__init__(name)
        self.message = f"model '{name[:100]}' not found{remedy}"
        self.args = (self.message,)


class Ollama:
    """Serves both ways to generate. Holds what outlives a request: the decoders and the state."""

    def __init__(self, state: ApplianceState) -> None:
        self._state = state
        self._chat_decoder = BodyDecoder(OllamaChatRequest)
        self._generate_decoder = BodyDecoder(GenerateRequest)

    async def chat(self, request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer `POST /api/chat`."""
        body = await read_body(request.scope, request.receive, self._state.limits)
        received_s = self._state.latency.clock()
        wanted = self._chat_decoder.decode(body)
        name = model_name(wanted)
        if not wanted.messages:
            return _Note(chat_note(name, await self._load_or_unload(name, wanted.keep_alive)))
        model = await self._model(name)
        arrival = self._arrival(request, received_s)
        messages = template_messages(model, wanted.messages)
        prepared = await prepare_chat(model, ollama_turn(model, messages, wanted, wanted.tools))
        started = self._start(model, wanted, prepared, arrival)
        return self._answer(
            model, wanted, started, OllamaChatFormat(name, self._times_of(started), started.logprobs)
        )

    async def generate(self, request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer `POST /api/generate`."""
        body = await read_body(request.scope, request.receive, self._state.limits)
        received_s = self._state.latency.clock()
        wanted = self._generate_decoder.decode(body)
        name = model_name(wanted)
        if not wanted.prompt and not wanted.suffix and not wanted.images:
            return _Note(generate_note(name, await self._load_or_unload(name, wanted.keep_alive)))
        model = await self._model(name)
        arrival = self._arrival(request, received_s)
        prepared = await prepare_generate(model, wanted)
        started = self._start(model, wanted, prepared, arrival)
        context_of = None if wanted.raw else _context_of(model, prepared.prompt_token_ids)
        answer_format = OllamaGenerateFormat(name, self._times_of(started), started.logprobs, context_of)
        return self._answer(model, wanted, started, answer_format)

    def _arrival(self, request: Request[Any, Any, Any], received_s: float) -> _Arrival:
        loaded_s = self._state.latency.clock()
        return _Arrival(
            received_s=received_s,
            loaded_s=loaded_s,
            salt=tenant_salt(request.scope),
            service_class=access_of(request.scope).class_for(ServiceClass.SILVER),
        )

    async def _model(self, name: str) -> ResidentModel:
        try:
            return await self._state.loaded_model(name)
        except UnknownModel as error:
            raise ModelMissing(name, remedy=", try pulling it first") from error

    async def _load_or_unload(self, name: str, keep_alive: KeepAlive) -> str:
        """Do as an empty request asks; return what was done, in Ollama's word."""
        wanted_s = keep_alive_s(keep_alive)
        if wanted_s == 0:
            self._unload(name)
            return "unload"
        model = await self._model(name)
        self._state.residency.used(base_id(self._state, model), wanted_s)
        return "load"

    def _unload(self, name: str) -> None:
        """Unloading what is not loaded is done already, where there is such a model."""
        try:
            model = self._state.resident_model(name)
        except UnknownModel as error:
            if self._state.library is None:
                raise ModelMissing(name) from error
            try:
                self._state.library.base_id(name)
            except UnknownModel:
                raise ModelMissing(name) from error
            return
        self._state.residency.unload(base_id(self._state, model))

    def _start(
        self,
        model: ResidentModel,
        wanted: GenerationFields,
        prepared: PreparedChat,
        arrival: _Arrival,
    ) -> _Started:
        options = read_options(model, wanted.options)
        params = sampling_params(
            options,
            num_prompt_tokens=len(prepared.prompt_token_ids),
            stop_token_ids=model.tokenizer.stop_token_ids,
            num_logprobs=logprobs_wanted(wanted.logprobs, wanted.top_logprobs),
        )
        wanted_s = keep_alive_s(wanted.keep_alive)
        group = start_generations(
            model,
            [_generation(prepared, params, stop_strings(options))],
            num_per_prompt=1,
            latency=self._state.latency,
            received_s=arrival.received_s,
            deadline_s=self._state.limits.deadline_s,
            prompt_field="prompt",
            cache_salt=arrival.salt,
            service_class=arrival.service_class,
        )
        model_id = base_id(self._state, model)
        self._state.residency.used(model_id, wanted_s or None)
        if wanted_s == 0:
            self._state.residency.unload(model_id, spares_pinned=True)
        writer = None if params.num_logprobs is None else LogprobWriter(model.tokenizer, params.num_logprobs)
        return _Started(group=group, logprobs=writer, arrival=arrival)

    def _times_of(self, started: _Started) -> "_Clock":
        return _Clock(self._state, started)

    def _answer(
        self, model: ResidentModel, wanted: GenerationFields, started: _Started, answer_format: OllamaFormat
    ) -> ASGIApp:
        return Answer(
            started.group,
            answer_format,
            state=self._state,
            request_id=answer_id("ollama-"),
            model_id=model.model_id,
            is_streamed=wanted.stream is not False,
            stream_kind=answer_format.stream_kind,
        )


class _Note:
    """An ASGI application that says one thing."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        await send_json(send, self._body)


class _Clock:
    """Reads one answer's times when its last line is written."""

    def __init__(self, state: ApplianceState, started: _Started) -> None:
        self._state = state
        self._started = started

    def __call__(self) -> Times:
        arrival = self._started.arrival
        return Times(
            total_s=self._state.latency.clock() - arrival.received_s,
            load_s=arrival.loaded_s - arrival.received_s,
            first_token_s=self._started.group.ttft_s,
        )


def ollama_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handlers of `/api/` that make text."""
    api = Ollama(state)

    @post("/api/chat", status_code=200)
    async def ollama_chat(request: Request[Any, Any, Any]) -> ASGIApp:
        return await api.chat(request)

    @post("/api/generate", status_code=200)
    async def ollama_generate(request: Request[Any, Any, Any]) -> ASGIApp:
        return await api.generate(request)

    return [ollama_chat, ollama_generate]


def model_name(wanted: ModelRequest) -> str:
    """Raises InvalidRequest where the request names no model."""
    name = wanted.model or wanted.name
    if not name:
        raise InvalidRequest(
            "'model' is missing; send the name of a model, as GET /api/tags lists", param="model"
        )
    return name


def base_id(state: ApplianceState, model: ResidentModel) -> str:
    """The id of the resident model behind a derived one."""
    derived = state.library.derived(model.model_id) if state.library else None
    return derived.base if derived else model.model_id


def _generation(prepared: PreparedChat, params: SamplingParams, stop: tuple[str, ...]) -> GenerationRequest:
    return GenerationRequest(
        prompt_token_ids=prepared.prompt_token_ids,
        params=params,
        stop=stop,
        rules=prepared.rules,
        grammar=prepared.grammar,
    )


def _context_of(model: ResidentModel, prompt: list[int]) -> ContextOf:
    def context_of(text: str) -> list[int]:
        return [*prompt, *model.tokenizer.encode(text, parse_special=False, add_bos=False)]

    return context_of
