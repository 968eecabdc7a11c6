"""OpenAI's responses: made, kept, shown and deleted. Decodes, checks and starts; knows no sockets."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from litestar import Request, Response, post, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from appliance.engine.sequence import SamplingParams
from appliance.errors import UnsupportedField
from appliance.model_pool import ResidentModel
from appliance.server.access import access_of
from appliance.server.answers import Answer
from appliance.server.appliance_state import ApplianceState
from appliance.server.cache_salt import cache_salt
from appliance.server.chat_turn import prepare_chat
from appliance.server.error_responses import json_response
from appliance.server.generation import GenerationRequest
from appliance.server.generation_group import start_generations
from appliance.server.off_loop import run_text_work
from appliance.server.openai_defaults import with_defaults
from appliance.server.openai_logprobs import LogprobWriter
from appliance.server.openai_params import checked_logprobs, checked_max_tokens, sampling_params
from appliance.server.openai_schemas import SamplingFields
from appliance.server.request_body import BodyDecoder, read_body
from appliance.server.request_tracing import answer_id
from appliance.server.responses_formats import ResponsesFormat
from appliance.server.responses_prompts import response_turn
from appliance.server.responses_schemas import (
    DeletedResponse,
    InputItem,
    ItemList,
    Json,
    ResponseBody,
    ResponsesRequest,
)
from appliance.server.responses_store import ResponsesStore
from appliance.server.service_tier import served_tier, service_class
from appliance.text.tokenizer import Tokenizer

_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_LOGPROBS = "message.output_text.logprobs"
# What clients ask to be included and always is, or never applies here.
_HARMLESS = ("reasoning.encrypted_content",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What was said before, and what this request adds."""

    before: tuple[InputItem, ...]
    new: tuple[InputItem, ...]


class Responses:
    """Serves `/v1/responses`. Holds what outlives a request: the decoder, the store and the state."""

    def __init__(self, state: ApplianceState, store: ResponsesStore) -> None:
        self._state = state
        self._store = store
        self._decoder = BodyDecoder(ResponsesRequest)

    async def create(self, request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer `POST /v1/responses`."""
        body = await read_body(request.scope, request.receive, self._state.limits)
        received_s = self._state.latency.clock()
        wanted = self._decoder.decode(body)
        _refuse_unsupported(wanted)
        access = access_of(request.scope)
        talk = self._conversation(access.tenant, wanted)
        model = await self._state.loaded_model(wanted.model)
        fields = with_defaults(_sampling_fields(wanted), model.defaults.settled)
        params = _params(wanted, fields, model.tokenizer)
        turn = await run_text_work(len(body), partial(response_turn, wanted, talk.before, talk.new))
        prepared = await prepare_chat(model, turn)
        served = access.class_for(service_class(wanted.service_tier))
        head = _head(model, wanted, served_tier(wanted.service_tier or "auto", served) or "")
        group = start_generations(
            model,
            [
                GenerationRequest(
                    prompt_token_ids=prepared.prompt_token_ids,
                    params=params,
                    rules=prepared.rules,
                    grammar=prepared.grammar,
                )
            ],
            num_per_prompt=1,
            latency=self._state.latency,
            received_s=received_s,
            deadline_s=self._state.limits.deadline_s,
            prompt_field="input",
            cache_salt=cache_salt(request.scope, fields),
            service_class=served,
        )
        writer = None if params.num_logprobs is None else LogprobWriter(model.tokenizer, params.num_logprobs)
        return Answer(
            group,
            ResponsesFormat(head, writer, partial(self._keep, access.tenant, talk)),
            state=self._state,
            request_id=head.id,
            model_id=model.model_id,
            is_streamed=bool(wanted.stream),
        )

    def _conversation(self, tenant: str, wanted: ResponsesRequest) -> Conversation:
        """Raises UnknownResponse."""
        before: tuple[InputItem, ...] = ()
        if wanted.previous_response_id is not None:
            previous = self._store.get(tenant, wanted.previous_response_id, param="previous_response_id")
            before = previous.conversation
        given = wanted.input or []
        if isinstance(given, str):
            given = [InputItem(role="user", content=given)]
        new = (self._resolved(tenant, item, f"input[{index}].id") for index, item in enumerate(given))
        return Conversation(before=before, new=tuple(map(_with_id, new)))

    def _resolved(self, tenant: str, item: InputItem, place: str) -> InputItem:
        return self._store.item(tenant, item.id or "", param=place) if item.type == "item_reference" else item

    def _keep(self, tenant: str, talk: Conversation, body: ResponseBody) -> None:
        if body.store:
            self._store.keep(tenant, body, talk.new, talk.before)


def responses_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handlers of `/v1/responses`."""
    store = ResponsesStore()
    api = Responses(state, store)

    @post("/v1/responses", status_code=200)
    async def create_response(request: Request[Any, Any, Any]) -> ASGIApp:
        return await api.create(request)

    # One handler: of two on a path, OPTIONS would tell the methods of the first alone.
    @route(
        "/v1/responses/{response_id:str}",
        http_method=[*_LOOK, HttpMethod.DELETE],
        status_code=200,
        sync_to_thread=False,
    )
    def get_or_delete_response(request: Request[Any, Any, Any]) -> Response[bytes]:
        tenant, response_id = access_of(request.scope).tenant, _id_of(request)
        if request.method != HttpMethod.DELETE:
            return _json(store.get(tenant, response_id).body)
        store.delete(tenant, response_id)
        return _json(DeletedResponse(id=response_id))

    @route("/v1/responses/{response_id:str}/input_items", http_method=_LOOK, sync_to_thread=False)
    def list_input_items(request: Request[Any, Any, Any]) -> Response[bytes]:
        stored = store.get(access_of(request.scope).tenant, _id_of(request))
        return _json(_item_list(stored.input_items))

    return [create_response, get_or_delete_response, list_input_items]


def _id_of(request: Request[Any, Any, Any]) -> str:
    return str(request.path_params["response_id"])


def _refuse_unsupported(wanted: ResponsesRequest) -> None:
    asked = {
        "background": bool(wanted.background),
        "conversation": bytes(wanted.conversation) not in (b"", b"null"),
        "prompt": bytes(wanted.prompt) not in (b"", b"null"),
        "truncation": wanted.truncation not in (None, "disabled"),
    }
    for field, is_asked in asked.items():
        if is_asked:
            raise UnsupportedField(field, remedy="leave it out")
    for name in wanted.include or ():
        if name not in (_LOGPROBS, *_HARMLESS):
            raise UnsupportedField("include", remedy=f"leave out '{name[:60]}'; {_LOGPROBS} is known")


def _sampling_fields(wanted: ResponsesRequest) -> SamplingFields:
    return SamplingFields(
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        seed=wanted.seed,
        top_k=wanted.top_k,
        min_p=wanted.min_p,
        repetition_penalty=wanted.repetition_penalty,
        user=wanted.user,
        prompt_cache_key=wanted.prompt_cache_key,
    )


def _params(wanted: ResponsesRequest, fields: SamplingFields, tokenizer: Tokenizer) -> SamplingParams:
    num_top = checked_logprobs(wanted.top_logprobs, "top_logprobs")
    return sampling_params(
        fields,
        max_tokens=checked_max_tokens(wanted.max_output_tokens, "max_output_tokens"),
        num_logprobs=(num_top or 0) if _LOGPROBS in (wanted.include or ()) else None,
        tokenizer=tokenizer,
    )


def _head(model: ResidentModel, wanted: ResponsesRequest, tier: str) -> ResponseBody:
    """The response before it has begun: what was asked, with the defaults filled in."""
    text_format = wanted.text.format if wanted.text else None
    reasoning = wanted.reasoning
    return ResponseBody(
        id=answer_id("resp_"),
        created_at=int(time.time()),
        instructions=wanted.instructions,
        max_output_tokens=wanted.max_output_tokens,
        model=model.model_id,
        parallel_tool_calls=wanted.parallel_tool_calls is not False,
        previous_response_id=wanted.previous_response_id,
        reasoning={
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        service_tier=tier,
        store=wanted.store is not False,
        temperature=1.0 if wanted.temperature is None else wanted.temperature,
        text={"format": msgspec.to_builtins(text_format) if text_format else {"type": "text"}},
        tool_choice="auto" if wanted.tool_choice is None else wanted.tool_choice,
        tools=[msgspec.to_builtins(tool) for tool in wanted.tools or ()],
        top_logprobs=wanted.top_logprobs or 0,
        top_p=1.0 if wanted.top_p is None else wanted.top_p,
        metadata=wanted.metadata or {},
    )


def _with_id(item: InputItem) -> InputItem:
    """Every kept item can be named."""
    return item if item.id else msgspec.structs.replace(item, id=f"item_{uuid.uuid4().hex}")


def _item_list(items: Sequence[InputItem]) -> ItemList:
    data: list[Json] = [{"type": item.type, **_shown(item)} for item in reversed(items)]
    return ItemList(
        data=data,
        first_id=data[0]["id"] if data else None,
        last_id=data[-1]["id"] if data else None,
        has_more=False,
    )


def _shown(item: InputItem) -> Json:
    """A text alone is shown as the part that it stands for."""
    shown: Json = msgspec.to_builtins(item)
    if item.type == "message" and isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        part: Json = {"type": kind, "text": item.content}
        shown["content"] = [part | ({"annotations": []} if kind == "output_text" else {})]
    return shown


def _json(body: msgspec.Struct) -> Response[bytes]:
    return json_response(msgspec.json.encode(body))
