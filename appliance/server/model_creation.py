"""Makes a derived model of an Ollama `create` request: checks every part before anything is stored."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from appliance.derived_models import DerivedModel
from appliance.errors import InvalidRequest, UnknownModel, UnsupportedField
from appliance.model_library import LibraryModel, ModelLibrary
from appliance.server.ollama import ModelMissing, model_name
from appliance.server.ollama_options import checked_options
from appliance.server.ollama_prompts import compiled_template
from appliance.server.ollama_schemas import CreateRequest, Message, Status
from appliance.server.progress_stream import steps_of

_ROLES = ("system", "user", "assistant")


async def create_model(library: ModelLibrary, wanted: CreateRequest) -> AsyncIterator[Status]:
    """Check, then return the steps that store it. Raises InvalidRequest, UnknownModel, UnsupportedModel."""
    _refuse_unsupported(wanted)
    name = library.new_name(model_name(wanted))
    if not wanted.base:
        raise InvalidRequest("'from' is missing; name the model to start from", param="from")
    try:
        base = await asyncio.to_thread(library.find, wanted.base)
    except UnknownModel as error:
        raise ModelMissing(wanted.base) from error
    derived = _derived(name, base, wanted)
    if wanted.template:
        await asyncio.to_thread(compiled_template, wanted.template)
    return steps_of(["using existing layer", "writing manifest"], lambda: library.save(derived))


def _derived(name: str, base: LibraryModel, wanted: CreateRequest) -> DerivedModel:
    """What the request says, over what its base says if that is derived itself."""
    old = base.derived or DerivedModel(name="base", base=base.base_id, created_s=0.0)
    parameters: dict[str, Any] = {**old.parameters, **(wanted.parameters or {})}
    parameters = {key: value for key, value in parameters.items() if value is not None}
    checked_options(parameters, field="parameters")
    licence = "\n".join(wanted.license) if isinstance(wanted.license, list) else wanted.license
    messages = [_message(message, index) for index, message in enumerate(wanted.messages or [])]
    return DerivedModel(
        name=name,
        base=base.base_id,
        created_s=time.time(),
        system=old.system if wanted.system is None else wanted.system,
        template=wanted.template or old.template,
        licence=licence or old.licence,
        parameters=parameters,
        messages=messages or old.messages,
    )


def _message(message: Message, index: int) -> dict[str, Any]:
    if message.role not in _ROLES or not isinstance(message.content, str):
        raise InvalidRequest(
            f"'messages[{index}]' must have a text and one of the roles {', '.join(_ROLES)}",
            param=f"messages[{index}]",
        )
    return {"role": message.role, "content": message.content}


def _refuse_unsupported(wanted: CreateRequest) -> None:
    given = msgspec.structs.asdict(wanted)
    for field in ("files", "adapters", "quantize", "modelfile"):
        if given[field]:
            raise UnsupportedField(
                field, remedy="name a model in 'from', with 'system', 'template' and 'parameters'"
            )
