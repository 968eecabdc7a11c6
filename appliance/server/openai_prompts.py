"""Turns OpenAI's messages and prompts into token ids. Knows roles and parts; knows no sampling."""

import contextlib
from typing import Any

import msgspec
from msgspec import UNSET

from appliance.errors import InvalidRequest, UnsupportedField
from appliance.model_pool import ResidentModel
from appliance.observe.request_context import Stage, timed
from appliance.server.chat_turn import ChatTurn
from appliance.server.off_loop import run_text_work
from appliance.server.openai_output import content_grammar, tool_rules
from appliance.server.openai_schemas import ChatMessage, ChatRequest, ContentPart, ToolCall
from appliance.text.infill import infill_token_ids

# The system's own instructions under two names.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_NOTHING = (b"", b"null")  # of a field of any JSON: absent, or as client libraries write absent ones
_MAX_TEMPLATE_DEPTH = 32


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
EFFORTS_WITHOUT_THOUGHT = ("none", "minimal")


def chat_turn(request: ChatRequest) -> ChatTurn:
    """Return the request in no protocol's words. Raises InvalidRequest."""
    options = request.chat_template_kwargs or {}
    if _depth(options, _MAX_TEMPLATE_DEPTH) > _MAX_TEMPLATE_DEPTH:
        raise InvalidRequest(
            f"'chat_template_kwargs' is nested deeper than {_MAX_TEMPLATE_DEPTH} levels; flatten it",
            param="chat_template_kwargs",
        )
    effort = request.reasoning_effort
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequest(
            f"'reasoning_effort' is '{effort[:50]}'; use one of {', '.join(EFFORTS)}",
            param="reasoning_effort",
        )
    rules = tool_rules(request)
    return ChatTurn(
        messages=template_messages(request.messages),
        tools=rules.tools,
        tool_choice=rules.choice,
        callable_names=rules.callable_names,
        is_parallel=request.parallel_tool_calls is not False and not rules.is_named,
        content=content_grammar(request),
        thinks=None if effort is None else effort not in EFFORTS_WITHOUT_THOUGHT,
        effort=effort,
        options=options,
    )


async def encode_prompts(
    model: ResidentModel, prompts: list[str | list[int]], suffix: str | None
) -> list[list[int]]:
    """Encode every prompt of a text completion. Control tokens in it count: the client owns all of it.

    With a suffix the model is asked for what stands between. Raises InvalidRequest.
    """
    num_chars = sum(map(len, prompts)) + len(suffix or "")
    with timed(Stage.TOKENIZE):
        if suffix:
            return await run_text_work(num_chars, lambda: [_infill(model, p, suffix) for p in prompts])
        return await run_text_work(num_chars, lambda: [_encode_prompt(model, prompt) for prompt in prompts])


def _infill(model: ResidentModel, prompt: str | list[int], suffix: str) -> list[int]:
    if not isinstance(prompt, str):
        raise InvalidRequest("'suffix' goes with a prompt that is a text", param="suffix")
    ids = infill_token_ids(model.tokenizer, prompt, suffix)
    if ids is None:
        raise UnsupportedField("suffix", remedy="leave it out: this model has no tokens for it")
    return ids


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:  # a template reads any JSON
    """Return the messages as templates expect them: one text each, the parts joined without a separator."""
    if not messages:
        raise InvalidRequest("'messages' is empty; send at least one message", param="messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def completion_prompts(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """Return the prompts in order: a text, a list of token ids, or a list of either."""
    if prompt is None:
        raise InvalidRequest("'prompt' is missing; send a text or token ids", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("'prompt' is an empty list; send at least one prompt", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [ids]
    if ids:
        raise InvalidRequest("'prompt' mixes token ids with prompts; send one or the other", param="prompt")
    return [item for item in prompt if not isinstance(item, int)]


def _template_message(message: ChatMessage, place: str) -> dict[str, Any]:
    role = ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            f"'{place}.role' is '{message.role[:50]}'; the roles are {', '.join(ROLES)}",
            param=f"{place}.role",
        )
    if bytes(message.function_call) not in _NOTHING:
        raise UnsupportedField(f"{place}.function_call", remedy="send 'tool_calls'")
    if bytes(message.audio) not in _NOTHING:
        raise UnsupportedField(f"{place}.audio", remedy="send its transcript as 'content'")
    rendered: dict[str, Any] = {"role": role, "content": _content_text(message, f"{place}.content")}
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_calls:
        rendered["tool_calls"] = [template_call(call) for call in message.tool_calls]
    if message.reasoning_content is not None:
        rendered["reasoning_content"] = message.reasoning_content
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


def _content_text(message: ChatMessage, place: str) -> str:
    """An assistant turn that only called tools has no content: null, absent and "" are the same."""
    content = message.content
    if content is None or content is UNSET:
        if message.role == "assistant":
            return ""
        raise InvalidRequest(f"'{place}' is missing; send a text or a list of text parts", param=place)
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{place}[{index}]") for index, part in enumerate(content))


def _part_text(part: ContentPart, place: str) -> str:
    if part.type != "text" or part.text is None:
        raise InvalidRequest(
            f"'{place}' is a part of type '{part.type[:50]}'; send parts of type 'text' that have a 'text'",
            param=place,
        )
    return part.text


def template_call(call: ToolCall) -> dict[str, Any]:
    """Templates expect arguments as an object; text that is none is shown as it is."""
    text = call.function.arguments or "{}"
    arguments: object = text
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        arguments = msgspec.json.decode(text, type=dict[str, Any])
    if _depth(arguments, _MAX_TEMPLATE_DEPTH) > _MAX_TEMPLATE_DEPTH:
        arguments = text
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }


def _encode_prompt(model: ResidentModel, prompt: str | list[int]) -> list[int]:
    tokenizer = model.tokenizer
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, parse_special=True)
    else:
        ids = prompt
        wrong = next((token_id for token_id in ids if not 0 <= token_id < tokenizer.vocab_size), None)
        if wrong is not None:
            raise InvalidRequest(
                f"'prompt' holds the token id {wrong}; this model's run from 0 to {tokenizer.vocab_size - 1}",
                param="prompt",
            )
    if not ids:
        raise InvalidRequest("'prompt' is empty and this model needs a token to begin with", param="prompt")
    return ids


def _depth(value: object, limit: int) -> int:
    """Levels of nesting, counted up to one past the limit: never deeper in our own stack than that."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if limit < 0 or not children:
        return 0
    return 1 + max(_depth(child, limit - 1) for child in children)
