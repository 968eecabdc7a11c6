"""Turns Ollama's messages and prompts into token ids. Knows roles, images and contexts; no sampling."""

import asyncio
from typing import Any

from appliance.errors import InvalidRequest, UnsupportedField
from appliance.model_pool import ResidentModel
from appliance.server.ollama_schemas import GenerateRequest, Message, OllamaToolCall
from appliance.text.chat_template import ChatTemplate

_ROLES = ("system", "user", "assistant", "tool")
_MAX_CONTEXT_TOKENS = 2**20
# Go's templates, which Ollama's own model files hold; ours are the models' own, in Jinja.
_GO_TEMPLATE_MARKS = ("{{ .", "{{.", "{{- .", "{{-.", "{{ if ", "{{- if ", "{{ range ", "{{- range ", "{{ $")


def template_messages(
    model: ResidentModel, messages: list[Message], system: str | None = None
) -> list[dict[str, Any]]:  # JSON, as templates read it
    """Return what the template gets: the model's own system prompt and messages, then the client's."""
    given = [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    system = model.defaults.system if system is None else system
    has_own = bool(given) and given[0]["role"] == "system"
    first = [{"role": "system", "content": system}] if system and not has_own else []
    return [*first, *map(dict, model.defaults.messages), *given]


async def encode_messages(
    model: ResidentModel,
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    extra: dict[str, Any] | None = None,
) -> list[int]:
    """Render with the model's template. Raises InvalidRequest where it has none, or refuses."""
    template = model.chat_template
    if template is None:
        raise InvalidRequest(
            f"the model '{model.model_id}' has no chat template; use /api/generate", param="messages"
        )
    return await asyncio.to_thread(template.encode, model.tokenizer, messages, tools=tools, extra=extra)


async def encode_generate(
    model: ResidentModel, request: GenerateRequest, extra: dict[str, Any] | None = None
) -> list[int]:
    """Encode a prompt: raw, or as one user's message after the tokens of `context`. Raises InvalidRequest."""
    refuse_images(request.images, "images")
    prompt = request.prompt or ""
    context = _checked_context(model, request.context)
    is_plain = model.chat_template is None and request.template is None
    if request.raw or is_plain:
        _check_raw(request)
        text = prompt if request.raw or not request.system else f"{request.system}\n\n{prompt}"
        ids = await asyncio.to_thread(model.tokenizer.encode, text, parse_special=bool(request.raw))
    else:
        messages = template_messages(model, [Message(role="user", content=prompt)], request.system)
        template = own_template(model, request.template) if request.template else model.chat_template
        assert template is not None
        ids = await asyncio.to_thread(template.encode, model.tokenizer, messages, extra=extra)
    if not context and not ids:
        raise InvalidRequest("'prompt' is empty and this model needs a token to begin with", param="prompt")
    return [*context, *_without_bos(model, ids)] if context else ids


def own_template(model: ResidentModel, source: str) -> ChatTemplate:
    """Compile a template that a client sent. Raises InvalidRequest."""
    check_template(source)
    return ChatTemplate(source, model.tokenizer.bos_token, model.tokenizer.eos_token)


def check_template(source: str) -> None:
    """Raise InvalidRequest for a template in Go's language, which would render as nonsense."""
    if any(mark in source for mark in _GO_TEMPLATE_MARKS):
        raise InvalidRequest(
            "'template' is a Go template; this appliance renders the models' own chat templates, in Jinja: "
            "send one of those, or leave it out",
            param="template",
        )


def refuse_images(images: list[Any] | None, place: str) -> None:
    if images:
        raise UnsupportedField(place, remedy="this model reads text only; leave them out")


def _template_message(message: Message, place: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"'{place}.role' is '{message.role[:50]}'; the roles are {', '.join(_ROLES)}",
            param=f"{place}.role",
        )
    refuse_images(message.images, f"{place}.images")
    rendered: dict[str, Any] = {"role": message.role, "content": _content_text(message, place)}
    if message.thinking:
        rendered["reasoning_content"] = message.thinking
    if message.tool_calls:
        rendered["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_name is not None:
        rendered["name"] = message.tool_name
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


def _content_text(message: Message, place: str) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    for index, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise InvalidRequest(
                f"'{place}.content[{index}]' is a part of type '{part.type[:50]}'; send a text",
                param=f"{place}.content",
            )
    return "".join(part.text or "" for part in message.content)


def _tool_call(call: OllamaToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})


def _checked_context(model: ResidentModel, context: list[int] | None) -> list[int]:
    context = context or []
    if len(context) > _MAX_CONTEXT_TOKENS:
        raise InvalidRequest(
            f"'context' has {len(context)} tokens; the most are {_MAX_CONTEXT_TOKENS}", param="context"
        )
    size = model.tokenizer.vocab_size
    wrong = next((token_id for token_id in context if not 0 <= token_id < size), None)
    if wrong is not None:
        raise InvalidRequest(
            f"'context' holds the token id {wrong}; this model's run from 0 to {size - 1}", param="context"
        )
    return context


def _without_bos(model: ResidentModel, ids: list[int]) -> list[int]:
    """A context already has what begins a text."""
    tokenizer = model.tokenizer
    return ids[1:] if tokenizer.adds_bos and ids[:1] == [tokenizer.bos_token_id] else ids


def _check_raw(request: GenerateRequest) -> None:
    if request.raw and (request.system or request.template or request.context):
        raise InvalidRequest(
            "'raw' is set, so 'system', 'template' and 'context' have no place; put all into 'prompt'",
            param="raw",
        )
