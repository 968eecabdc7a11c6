"""Ollama's routes about models: list, show, what runs, pull, delete, copy, create. Knows no sampling."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import MediaType, Request, Response, delete, post, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from appliance import __version__
from appliance.errors import NotReady, UnknownModel
from appliance.model_library import FileFacts, LibraryModel, ModelLibrary
from appliance.model_pool import ResidentModel
from appliance.server.appliance_state import ApplianceState
from appliance.server.error_responses import json_response
from appliance.server.model_creation import create_model
from appliance.server.ollama import ModelMissing, model_name
from appliance.server.ollama_formats import time_text
from appliance.server.ollama_schemas import (
    CopyRequest,
    CreateRequest,
    Details,
    ModelRequest,
    PullRequest,
    Running,
    RunningModel,
    Shown,
    ShowRequest,
    TagModel,
    Tags,
    Version,
)
from appliance.server.progress_stream import ProgressStream, pull_steps
from appliance.server.request_body import BodyDecoder, read_body
from appliance.server.residency import FOREVER_S

_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_NEVER = datetime(2999, 12, 31, tzinfo=UTC)


class OllamaModels:
    """Answers about the library, the disk read in worker threads."""

    def __init__(self, state: ApplianceState) -> None:
        self._state = state

    @property
    def library(self) -> ModelLibrary:
        if self._state.library is None:
            raise NotReady("this appliance has no model store")
        return self._state.library

    async def tags(self) -> Tags:
        models = await asyncio.to_thread(self.library.models)
        return Tags(models=[self._tag(model) for model in models])

    async def find(self, name: str) -> LibraryModel:
        try:
            return await asyncio.to_thread(self.library.find, name)
        except UnknownModel as error:
            raise ModelMissing(name) from error

    async def running(self) -> Running:
        found = {model.name: model for model in await asyncio.to_thread(self.library.models)}
        return Running(
            models=[
                self._running(resident, found.get(resident.model_id)) for resident in self._state.pool.list()
            ]
        )

    async def show(self, name: str) -> Shown:
        model = await self.find(name)
        facts = await asyncio.to_thread(self.library.read, model)
        resident = self._resident(model)
        template = _template_of(model, facts, resident)
        parameters = model.derived.parameters if model.derived else _defaults(model)
        system = model.derived.system if model.derived else None
        return Shown(
            license=_licence(model),
            modelfile=_modelfile(model, parameters, system),
            parameters="\n".join(_parameter_lines(parameters)),
            template=template,
            system=msgspec.UNSET if system is None else system,
            details=_details(model, resident, facts),
            model_info={"general.parameter_count": facts.num_parameters, **facts.metadata},
            capabilities=capabilities(template, facts),
            modified_at=_moment(model.modified_s),
        )

    async def delete(self, name: str) -> None:
        """A model in use is unloaded first; what runs on it ends in peace."""
        model = await self.find(name)
        if model.derived is None:
            self._state.residency.unload(model.base_id)
        await asyncio.to_thread(self.library.remove, name)

    async def copy(self, source: str, destination: str) -> None:
        await self.find(source)
        await asyncio.to_thread(self.library.copy, source, destination)

    def _resident(self, model: LibraryModel) -> ResidentModel | None:
        return next((r for r in self._state.pool.list() if r.model_id == model.base_id), None)

    def _tag(self, model: LibraryModel) -> TagModel:
        return TagModel(
            name=model.name,
            model=model.name,
            modified_at=_moment(model.modified_s),
            size=model.size_bytes,
            digest=model.digest,
            details=_details(model, self._resident(model)),
        )

    def _running(self, resident: ResidentModel, model: LibraryModel | None) -> RunningModel:
        facts = resident.facts
        size_bytes = facts.weights_bytes + facts.kv_pool_bytes
        expires_s = self._state.residency.expires_s(resident.model_id)
        return RunningModel(
            name=resident.model_id,
            model=resident.model_id,
            size=size_bytes,
            digest=model.digest if model else "",
            details=_details(model, resident),
            expires_at=time_text(_NEVER) if expires_s == FOREVER_S else _moment(expires_s),
            size_vram=size_bytes if facts.device.startswith("cuda") else 0,
            context_length=facts.context_length,
        )


def ollama_model_routes(state: ApplianceState) -> list[HTTPRouteHandler]:
    """The handlers of `/api/` about models."""
    api = OllamaModels(state)
    return [*_looking_routes(api, state), *_changing_routes(api, state)]


def _looking_routes(api: OllamaModels, state: ApplianceState) -> list[HTTPRouteHandler]:
    show_decoder = BodyDecoder(ShowRequest)

    @route("/api/version", http_method=_LOOK, sync_to_thread=False)
    def ollama_version() -> Response[bytes]:
        return _json(Version(version=__version__))

    @route("/api/tags", http_method=_LOOK)
    async def ollama_tags() -> Response[bytes]:
        return _json(await api.tags())

    @route("/api/ps", http_method=_LOOK)
    async def ollama_running() -> Response[bytes]:
        return _json(await api.running())

    @post("/api/show", status_code=200)
    async def ollama_show(request: Request[Any, Any, Any]) -> Response[bytes]:
        wanted = show_decoder.decode(await read_body(request.scope, request.receive, state.limits))
        return _json(await api.show(model_name(wanted)))

    return [ollama_version, ollama_tags, ollama_running, ollama_show]


def _changing_routes(api: OllamaModels, state: ApplianceState) -> list[HTTPRouteHandler]:
    pull_decoder, delete_decoder = BodyDecoder(PullRequest), BodyDecoder(ModelRequest)
    copy_decoder, create_decoder = BodyDecoder(CopyRequest), BodyDecoder(CreateRequest)

    async def body_of(request: Request[Any, Any, Any]) -> bytes:
        return await read_body(request.scope, request.receive, state.limits)

    @post("/api/pull", status_code=200)
    async def ollama_pull(request: Request[Any, Any, Any]) -> ASGIApp:
        wanted = pull_decoder.decode(await body_of(request))
        steps = pull_steps(api.library, model_name(wanted))
        return ProgressStream(state, steps, is_streamed=wanted.stream is not False)

    @delete("/api/delete", status_code=200)
    async def ollama_delete(request: Request[Any, Any, Any]) -> Response[None]:
        await api.delete(model_name(delete_decoder.decode(await body_of(request))))
        return Response(None, media_type=MediaType.TEXT)

    @post("/api/copy", status_code=200)
    async def ollama_copy(request: Request[Any, Any, Any]) -> Response[None]:
        wanted = copy_decoder.decode(await body_of(request))
        await api.copy(wanted.source, wanted.destination)
        return Response(None, media_type=MediaType.TEXT)

    @post("/api/create", status_code=200)
    async def ollama_create(request: Request[Any, Any, Any]) -> ASGIApp:
        wanted = create_decoder.decode(await body_of(request))
        steps = await create_model(api.library, wanted)
        return ProgressStream(state, steps, is_streamed=wanted.stream is not False)

    return [ollama_pull, ollama_delete, ollama_copy, ollama_create]


def capabilities(template: str, facts: FileFacts) -> list[str]:
    """What clients may ask of the model, in Ollama's words."""
    marks: dict[str, Callable[[], bool]] = {
        "tools": lambda: "tools" in template,
        "thinking": lambda: "enable_thinking" in template or "<think>" in template,
        "insert": lambda: any(
            key.endswith(("fim_pre_token_id", "prefix_token_id")) for key in facts.metadata
        ),
    }
    return ["completion", *(word for word, has in marks.items() if has())]


def human_parameters(count: int) -> str:
    if count < 999.5e6:
        return f"{count / 1e6:.2f}M".replace(".00", "")
    return f"{count / 1e9:.1f}B"


def _details(
    model: LibraryModel | None, resident: ResidentModel | None, facts: FileFacts | None = None
) -> Details:
    entry = model.entry if model else None
    family = str(facts.metadata.get("general.architecture", "")) if facts else ""
    family = family or (resident.facts.architecture if resident else entry.architecture if entry else "")
    count = facts.num_parameters if facts else 0
    count = count or (resident.facts.num_parameters if resident else entry.num_parameters if entry else 0)
    return Details(
        parent_model=model.base_id if model and model.derived else "",
        format="gguf",
        family=family or "unknown",
        families=[family or "unknown"],
        parameter_size=human_parameters(count),
        quantization_level=model.quantization if model else "unknown",
    )


def _template_of(model: LibraryModel, facts: FileFacts, resident: ResidentModel | None) -> str:
    if model.derived and model.derived.template is not None:
        return model.derived.template
    if resident is not None:
        return resident.chat_template.source if resident.chat_template else ""
    return str(facts.metadata.get("tokenizer.chat_template", ""))


def _licence(model: LibraryModel) -> str:
    if model.derived and model.derived.licence:
        return model.derived.licence
    if model.entry is None:
        return ""
    return " ".join(filter(None, (model.entry.licence, model.entry.licence_url)))


def _defaults(model: LibraryModel) -> dict[str, Any]:
    return dict(msgspec.to_builtins(model.entry.sampling)) if model.entry else {}


def _parameter_lines(parameters: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in parameters.items():
        values = value if isinstance(value, list) else [value]
        lines += [f"{name:<30} {msgspec.json.encode(item).decode()}" for item in values]
    return lines


def _modelfile(model: LibraryModel, parameters: dict[str, Any], system: str | None) -> str:
    lines = [f"FROM {model.base_id}"]
    lines += [f"PARAMETER {' '.join(line.split(maxsplit=1))}" for line in _parameter_lines(parameters)]
    if system is not None:
        lines.append(f'SYSTEM """{system}"""')
    return "\n".join(lines) + "\n"


def _moment(unix_s: float) -> str:
    return time_text(datetime.fromtimestamp(unix_s, UTC))


def _json(answer: msgspec.Struct) -> Response[bytes]:
    return json_response(msgspec.json.encode(answer))
