"""Turns Ollama's messages and prompts into token ids. Knows roles, images and contexts; no sampling."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from appliance.errors import InvalidRequest, UnsupportedField, UnsupportedModel
from appliance.model_pool import ResidentModel
from appliance.observe.request_context import Stage, timed
from appliance.server.chat_turn import ChatTurn, PreparedChat, compiled_content, prepare_chat
from appliance.server.off_loop import run_text_work
from appliance.server.ollama_schemas import GenerateRequest, GenerationFields, Message, OllamaToolCall
from appliance.server.openai_output import tools_of
from appliance.server.openai_schemas import ToolDefinition
from appliance.server.request_body import as_invalid_request
from appliance.text.answer_grammar import Tool
from appliance.text.answer_reader import PLAIN
from appliance.text.call_syntax import thought_syntax_of
from appliance.text.chat_template import ChatTemplate
from appliance.text.grammar import Grammar, json_grammar
from appliance.text.infill import infill_token_ids

_EFFORTS = ("low", "medium", "high")
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


def ollama_turn(
    model: ResidentModel,
    messages: list[dict[str, Any]],
    wanted: GenerationFields,
    tools: list[dict[str, Any]] | None = None,
) -> ChatTurn:
    """Return the request in no protocol's words. Raises InvalidRequest, UnsupportedField."""
    effort = wanted.think if isinstance(wanted.think, str) else None
    if effort is not None and effort not in _EFFORTS:
        raise InvalidRequest(
            f"'think' is '{effort[:50]}'; use true, false, {', '.join(_EFFORTS)}", param="think"
        )
    template = model.chat_template
    if wanted.think and (template is None or thought_syntax_of(template.source) is None):
        raise InvalidRequest(f'"{model.model_id}" does not support thinking; leave it out', param="think")
    return ChatTurn(
        messages=messages,
        tools=_tools(tools or []),
        content=content_grammar(wanted),
        thinks=None if wanted.think is None else bool(wanted.think),
        effort=effort,
    )


async def prepare_generate(model: ResidentModel, request: GenerateRequest) -> PreparedChat:
    """Encode a prompt: raw, around a gap, or as one user's message after the tokens of `context`.

    Raises InvalidRequest, UnsupportedField.
    """
    refuse_images(request.images, "images")
    prompt = request.prompt or ""
    context = _checked_context(model, request.context)
    if request.suffix:
        return await _plain(model, _fill_in(model, prompt, request.suffix), request)
    if request.raw or (model.chat_template is None and request.template is None):
        _check_raw(request)
        text = prompt if request.raw or not request.system else f"{request.system}\n\n{prompt}"
        work = partial(model.tokenizer.encode, text, parse_special=bool(request.raw))
        with timed(Stage.TOKENIZE):
            ids = await run_text_work(len(text), work)
        prepared = await _plain(model, ids, request)
    else:
        prepared = await _by_template(model, prompt, request)
    if not context:
        return prepared
    return replace(prepared, prompt_token_ids=[*context, *_without_bos(model, prepared.prompt_token_ids)])


async def _by_template(model: ResidentModel, prompt: str, request: GenerateRequest) -> PreparedChat:
    if request.template:
        model = replace(model, chat_template=own_template(model, request.template))
    messages = template_messages(model, [Message(role="user", content=prompt)], request.system)
    try:
        return await prepare_chat(model, ollama_turn(model, messages, request))
    except UnsupportedModel as error:
        if not request.template:
            raise
        raise _bad_template(error) from error


def content_grammar(wanted: GenerationFields) -> Grammar | None:
    """Return what `format` asks for: any JSON object, or what a schema describes. Raises InvalidRequest."""
    raw = bytes(wanted.format)
    if raw in (b"", b"null", b'""'):
        return None
    try:
        schema = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"'format' is not valid: {error}", param="format") from None
    if schema == "json":
        return json_grammar({"type": "object"}, field="format")
    if not isinstance(schema, dict):
        raise InvalidRequest("'format' is neither 'json' nor a JSON schema; send one of them", param="format")
    return json_grammar(schema, field="format")


def own_template(model: ResidentModel, source: str) -> ChatTemplate:
    """Compile a template that a client sent. Raises InvalidRequest."""
    return compiled_template(source, model.tokenizer.bos_token, model.tokenizer.eos_token)


def compiled_template(source: str, bos_token: str = "", eos_token: str = "") -> ChatTemplate:
    """Raise InvalidRequest for no Jinja, such as Go's language, which would render as nonsense."""
    if any(mark in source for mark in _GO_TEMPLATE_MARKS):
        raise InvalidRequest(
            "'template' is a Go template; this appliance renders the models' own chat templates, in Jinja: "
            "send one of those, or leave it out",
            param="template",
        )
    try:
        return ChatTemplate(source, bos_token, eos_token)
    except UnsupportedModel as error:
        raise _bad_template(error) from error


def _bad_template(error: UnsupportedModel) -> InvalidRequest:
    """Of a template that the client sent: the fault is not the model's."""
    return InvalidRequest(f"'template': {error.message}", param="template")


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


def _tools(given: list[dict[str, Any]]) -> tuple[Tool, ...]:
    """Raises InvalidRequest naming the tool at fault."""
    try:
        definitions = msgspec.convert(given, list[ToolDefinition])
    except msgspec.ValidationError as error:
        raise as_invalid_request(str(error), root="tools") from error
    return tools_of(definitions)


def _fill_in(model: ResidentModel, prompt: str, suffix: str) -> list[int]:
    ids = infill_token_ids(model.tokenizer, prompt, suffix)
    if ids is None:
        raise UnsupportedField(
            "suffix", remedy=f"the model '{model.model_id}' does not support insert; leave it out"
        )
    return ids


async def _plain(model: ResidentModel, ids: list[int], request: GenerateRequest) -> PreparedChat:
    """A prompt without a chat around it."""
    if not ids:
        raise InvalidRequest("'prompt' is empty and this model needs a token to begin with", param="prompt")
    grammar = await compiled_content(model, content_grammar(request))
    return PreparedChat(prompt_token_ids=ids, rules=PLAIN, grammar=grammar)


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
