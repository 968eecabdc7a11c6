"""`/system/v1/models`: every model with its state, and pulling, loading, unloading."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
from litestar import Request, Response, post, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from appliance.errors import NotReady
from appliance.model_library import LibraryModel, ModelLibrary
from appliance.model_pool import ResidentModel
from appliance.server.appliance_state import ApplianceState
from appliance.server.error_responses import json_response
from appliance.server.ollama_options import keep_alive_s
from appliance.server.ollama_schemas import KeepAlive, Status
from appliance.server.progress_stream import SUCCESS, ProgressStream, pull_steps
from appliance.server.request_body import BodyDecoder, read_body
from appliance.server.residency import FOREVER_S

ModelState = Literal["loaded", "loading", "draining", "installed", "available"]
_LOOK_INTERVAL_S = 0.1
_PERCENT = 100


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One model. Memory and requests only of a loaded one; `expires_s` in Unix seconds, null for never."""

    id: str
    state: ModelState
    size_bytes: int
    base: str | None = None  # of a name given by copy or create
    detail: str = ""  # of a loading one: what is happening
    progress: float | None = None
    is_pinned: bool = False
    weights_bytes: int = 0
    kv_pool_bytes: int = 0
    requests: int = 0
    expires_s: float | None = None


class ModelStatuses(msgspec.Struct, frozen=True, kw_only=True):
    models: list[ModelStatus]


class NamedModel(msgspec.Struct, frozen=True, kw_only=True):
    """`keep_alive` as Ollama's; only loading looks at it."""

    model: str
    keep_alive: KeepAlive = None
    stream: bool = True


class SystemModels:
    """Answers about the library and the pool together."""

    def __init__(self, state: ApplianceState) -> None:
        self._state = state

    @property
    def library(self) -> ModelLibrary:
        if self._state.library is None:
            raise NotReady("this appliance has no model store")
        return self._state.library

    async def list(self) -> ModelStatuses:
        found = await asyncio.to_thread(self.library.models)
        absent = await asyncio.to_thread(self.library.available)
        resident = {model.model_id: model for model in self._state.pool.list()}
        statuses = [self._status(model, resident.get(model.base_id)) for model in found]
        statuses += [ModelStatus(id=e.model_id, state="available", size_bytes=e.size_bytes) for e in absent]
        return ModelStatuses(models=statuses)

    def load_steps(self, wanted: NamedModel) -> AsyncIterator[Status]:
        return self._load_steps(wanted.model, keep_alive_s(wanted.keep_alive))

    async def unload(self, name: str) -> ModelStatuses:
        """Done already where it is not loaded. Raises UnknownModel."""
        self._state.residency.unload(self.library.base_id(name))
        return await self.list()

    async def _load_steps(self, name: str, kept_s: float | None) -> AsyncIterator[Status]:
        self._state.require_ready()
        model = await asyncio.to_thread(self.library.find, name)
        residency = self._state.residency
        work = asyncio.create_task(residency.load(model))
        last = Status(status="loading")
        yield last
        while not work.done():
            await asyncio.wait([work], timeout=_LOOK_INTERVAL_S)
            progress = residency.progress_of(model.base_id)
            newest = progress and _status_of(progress.text, progress.share)
            if newest and newest != last:
                last = newest
                yield newest
        await work
        residency.used(model.base_id, kept_s)
        yield SUCCESS

    def _status(self, model: LibraryModel, resident: ResidentModel | None) -> ModelStatus:
        residency = self._state.residency
        progress = residency.progress_of(model.base_id)
        expires_s = residency.expires_s(model.base_id) if resident else FOREVER_S
        return ModelStatus(
            id=model.name,
            state=residency.state_of(model.base_id) or "installed",
            size_bytes=model.size_bytes,
            base=model.base_id if model.derived else None,
            detail=progress.text if progress else "",
            progress=progress.share if progress else None,
            is_pinned=self._state.pool.is_pinned(model.base_id),
            weights_bytes=resident.facts.weights_bytes if resident else 0,
            kv_pool_bytes=resident.facts.kv_pool_bytes if resident else 0,
            requests=resident.engine.num_live if resident else 0,
            expires_s=None if expires_s == FOREVER_S else expires_s,
        )


def system_model_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handlers of `/system/v1/models`."""
    api, decoder = SystemModels(state), BodyDecoder(NamedModel)

    async def wanted_of(request: Request[Any, Any, Any]) -> NamedModel:
        return decoder.decode(await read_body(request.scope, request.receive, state.limits))

    @route("/system/v1/models", http_method=(HttpMethod.GET, HttpMethod.HEAD))
    async def list_all_models() -> Response[bytes]:
        return json_response(msgspec.json.encode(await api.list()))

    @post("/system/v1/models/pull", status_code=200)
    async def pull_model(request: Request[Any, Any, Any]) -> ASGIApp:
        wanted = await wanted_of(request)
        return ProgressStream(state, pull_steps(api.library, wanted.model), is_streamed=wanted.stream)

    @post("/system/v1/models/load", status_code=200)
    async def load_model(request: Request[Any, Any, Any]) -> ASGIApp:
        wanted = await wanted_of(request)
        return ProgressStream(state, api.load_steps(wanted), is_streamed=wanted.stream)

    @post("/system/v1/models/unload", status_code=200)
    async def unload_model(request: Request[Any, Any, Any]) -> Response[bytes]:
        return json_response(msgspec.json.encode(await api.unload((await wanted_of(request)).model)))

    return [list_all_models, pull_model, load_model, unload_model]


def _status_of(text: str, share: float | None) -> Status:
    if share is None:
        return Status(status=text)
    return Status(status=text, total=_PERCENT, completed=round(share * _PERCENT))
