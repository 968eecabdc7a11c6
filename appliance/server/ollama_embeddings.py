"""Ollama's routes that make vectors, the newer one and the older. Both give vectors of length 1."""

from array import array
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from appliance.engine.sequence import ServiceClass
from appliance.errors import InvalidRequest, PromptTooLong, UnknownModel
from appliance.model_pool import ResidentModel
from appliance.server.access import access_of
from appliance.server.appliance_state import ApplianceState
from appliance.server.cache_salt import tenant_salt
from appliance.server.embeddings import (
    Embedded,
    EmbeddingWishes,
    embed,
    embedding_inputs,
    longest_prompt,
)
from appliance.server.ollama import ModelMissing, base_id, model_name
from appliance.server.ollama_options import keep_alive_s
from appliance.server.ollama_schemas import Embedded as EmbeddedBody
from appliance.server.ollama_schemas import EmbeddingsRequest, EmbedRequest, KeepAlive, OneEmbedded
from appliance.server.request_body import BodyDecoder, read_body
from appliance.server.work_answer import WorkAnswer

_NS = 1_000_000_000


class OllamaEmbeddings:
    """Serves both. Holds what outlives a request: the decoders and the state."""

    def __init__(self, state: ApplianceState) -> None:
        self._state = state
        self._decoder = BodyDecoder(EmbedRequest)
        self._older_decoder = BodyDecoder(EmbeddingsRequest)

    async def embed(self, request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer `POST /api/embed`. Without an input the model is loaded and there are no vectors."""
        wanted = self._decoder.decode(await read_body(request.scope, request.receive, self._state.limits))
        clock = self._state.latency.clock
        received_s = clock()
        name = model_name(wanted)
        model = await self._model(name)
        loaded_s = clock()

        def body(embedded: Embedded) -> msgspec.Struct:
            return EmbeddedBody(
                model=name,
                embeddings=[vector.tolist() for vector in embedded.vectors],
                total_duration=int((clock() - received_s) * _NS),
                load_duration=int((loaded_s - received_s) * _NS),
                prompt_eval_count=embedded.num_prompt_tokens,
            )

        wishes = EmbeddingWishes(
            dimensions=wanted.dimensions or None,
            max_tokens=longest_prompt(model) if wanted.truncate else None,
            cache_salt=tenant_salt(request.scope),
            service_class=access_of(request.scope).class_for(ServiceClass.SILVER),
        )
        return self._answer(model, wanted.input or [], wishes, wanted.keep_alive, body)

    async def embed_one(self, request: Request[Any, Any, Any]) -> ASGIApp:
        """Answer `POST /api/embeddings`."""
        body = await read_body(request.scope, request.receive, self._state.limits)
        wanted = self._older_decoder.decode(body)
        model = await self._model(model_name(wanted))
        wishes = EmbeddingWishes(
            cache_salt=tenant_salt(request.scope),
            service_class=access_of(request.scope).class_for(ServiceClass.SILVER),
        )

        def vector(embedded: Embedded) -> msgspec.Struct:
            return OneEmbedded(embedding=next(iter(embedded.vectors), array("f")).tolist())

        return self._answer(model, wanted.prompt or [], wishes, wanted.keep_alive, vector)

    def _answer(
        self,
        model: ResidentModel,
        given: str | list[str],
        wishes: EmbeddingWishes,
        keep_alive: KeepAlive,
        body: Callable[[Embedded], msgspec.Struct],
    ) -> ASGIApp:
        wanted_s = keep_alive_s(keep_alive)
        model_id, residency = base_id(self._state, model), self._state.residency

        async def work() -> bytes:
            inputs = embedding_inputs([given] if isinstance(given, str) else [*given]) if given else []
            residency.used(model_id, wanted_s or None)
            try:
                embedded = await embed(self._state, model, inputs, wishes)
            except PromptTooLong as error:
                raise _with_remedy(error) from error
            if wanted_s == 0:
                residency.unload(model_id)
            return msgspec.json.encode(body(embedded))

        return WorkAnswer(work, self._state)

    async def _model(self, name: str) -> ResidentModel:
        try:
            return await self._state.loaded_model(name)
        except UnknownModel as error:
            raise ModelMissing(name, remedy=", try pulling it first") from error


def ollama_embedding_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handlers of `/api/embed` and `/api/embeddings`."""
    api = OllamaEmbeddings(state)

    @post("/api/embed", status_code=200)
    async def ollama_embed(request: Request[Any, Any, Any]) -> ASGIApp:
        return await api.embed(request)

    @post("/api/embeddings", status_code=200)
    async def ollama_embeddings(request: Request[Any, Any, Any]) -> ASGIApp:
        return await api.embed_one(request)

    return [ollama_embed, ollama_embeddings]


def _with_remedy(error: PromptTooLong) -> InvalidRequest:
    return InvalidRequest(f"{error.message}, or have /api/embed cut it with 'truncate': true", param="input")
