"""Turns Anthropic's messages, tools and thinking into a ChatTurn. Knows blocks; knows no sampling."""

import json
from collections.abc import Sequence
from typing import Any

from appliance.errors import InvalidRequest, UnsupportedField
from appliance.model_pool import ResidentModel
from appliance.server.anthropic_schemas import AnthropicMessage, AnthropicTool, Block, CountRequest
from appliance.server.chat_turn import ChatTurn, ToolChoice
from appliance.text.answer_grammar import Tool
from appliance.text.grammar import Grammar, json_grammar

_MAX_TOOLS = 256
_MAX_NAME_CHARS = 128
_EFFORTS = ("low", "medium", "high", "max", "xhigh")


def message_turn(model: ResidentModel, request: CountRequest) -> tuple[ChatTurn, str]:
    """Return what is to be answered, and the text that the answer begins with (its prefill).

    Raises InvalidRequest, UnsupportedField.
    """
    _refuse_unsupported(request)
    if not request.messages:
        raise InvalidRequest("'messages' is empty; send at least one message", param="messages")
    system = _system_text(request.system)
    system = model.defaults.system if system is None else system
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages += map(dict, model.defaults.messages)
    names: dict[str, str] = {}
    for index, message in enumerate(request.messages):
        messages += _template_messages(message, f"messages[{index}]", names)
    prefill = _taken_prefill(messages)
    tools, choice, callable_names = _tool_rules(request)
    thinks = request.thinking is not None and request.thinking.type in ("enabled", "adaptive")
    turn = ChatTurn(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        callable_names=callable_names,
        is_parallel=callable_names is None
        and not (request.tool_choice and request.tool_choice.disable_parallel_tool_use),
        content=_content_grammar(request),
        thinks=thinks and not prefill,
        effort=request.output_config.effort if request.output_config else None,
    )
    return turn, prefill


def _system_text(system: str | list[Block] | None) -> str | None:
    return _joined_text(system, "system") if isinstance(system, list) else system


def _template_messages(
    message: AnthropicMessage, place: str, names: dict[str, str]
) -> list[dict[str, Any]]:  # JSON, as templates read it
    blocks = message.content
    if message.role not in ("user", "assistant", "system"):
        raise InvalidRequest(
            f"'{place}.role' is '{message.role[:50]}'; the roles are user and assistant", param=place
        )
    if isinstance(blocks, str):
        return [{"role": message.role, "content": blocks}]
    if message.role == "assistant":
        return [_assistant_message(blocks, place, names)]
    return _user_messages(message.role, blocks, place, names)


def _user_messages(role: str, blocks: list[Block], place: str, names: dict[str, str]) -> list[dict[str, Any]]:
    """Texts in a row are one message; each tool's result is one of its own."""
    messages: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{place}.content[{index}]"
        if block.type == "tool_result":
            messages.append(_tool_message(block, where, names))
        elif messages and messages[-1]["role"] == role:
            messages[-1]["content"] += _text_of(block, where)
        else:
            messages.append({"role": role, "content": _text_of(block, where)})
    return messages or [{"role": role, "content": ""}]


def _tool_message(block: Block, place: str, names: dict[str, str]) -> dict[str, Any]:
    if block.tool_use_id is None or block.tool_use_id not in names:
        raise InvalidRequest(
            f"'{place}.tool_use_id' is {str(block.tool_use_id)[:80]!r}, which no tool_use before it has",
            param=f"{place}.tool_use_id",
        )
    content = block.content
    text = content or "" if not isinstance(content, list) else _joined_text(content, f"{place}.content")
    if block.is_error:
        text = f"Error: {text}"
    return {
        "role": "tool",
        "content": text,
        "tool_call_id": block.tool_use_id,
        "name": names[block.tool_use_id],
    }


def _assistant_message(blocks: list[Block], place: str, names: dict[str, str]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        where = f"{place}.content[{index}]"
        if block.type == "tool_use":
            calls.append(_tool_call(block, where))
            names[str(block.id)] = str(block.name)
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            texts.append(_text_of(block, where))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_call(block: Block, place: str) -> dict[str, Any]:
    if not block.id or not block.name:
        raise InvalidRequest(f"'{place}' is a tool_use without an id and a name; send both", param=place)
    try:
        arguments = json.loads(bytes(block.input).decode() or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"'{place}.input' is not valid: {error}", param=f"{place}.input") from None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"'{place}.input' is no object; send one", param=f"{place}.input")
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _joined_text(blocks: Sequence[Block], place: str) -> str:
    return "".join(_text_of(block, f"{place}[{index}]") for index, block in enumerate(blocks))


def _text_of(block: Block, place: str) -> str:
    if block.type in ("image", "document", "search_result", "container_upload"):
        raise UnsupportedField(f"{place} (a part of type '{block.type}')", remedy="send its content as text")
    if block.type != "text" or block.text is None:
        raise InvalidRequest(
            f"'{place}' is a part of type '{block.type[:50]}', which has no place here; send a text",
            param=place,
        )
    return block.text


def _taken_prefill(messages: list[dict[str, Any]]) -> str:
    """Take the assistant's last words off the messages: the answer goes on from them."""
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        return ""
    messages.pop()
    if not messages:
        raise InvalidRequest("'messages' holds only the answer's beginning; ask something", param="messages")
    return str(last["content"])


def _tool_rules(request: CountRequest) -> tuple[tuple[Tool, ...], ToolChoice, frozenset[str] | None]:
    given = request.tools or []
    if len(given) > _MAX_TOOLS:
        raise InvalidRequest(f"'tools' has {len(given)} entries; the most is {_MAX_TOOLS}", param="tools")
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("'tools' has two of the same name; rename one", param="tools")
    choice = request.tool_choice
    match choice.type if choice else "auto":
        case "auto":
            return tools, ToolChoice.AUTO, None
        case "none":
            return tools, ToolChoice.NONE, None
        case "any" if tools:
            return tools, ToolChoice.REQUIRED, None
        case "tool" if choice and choice.name in names:
            return tools, ToolChoice.REQUIRED, frozenset([choice.name])
    raise InvalidRequest(
        "'tool_choice' is not valid: use auto, none, any with 'tools', or tool with the name of one of them",
        param="tool_choice",
    )


def _tool(tool: AnthropicTool, place: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise UnsupportedField(f"{place}.type", remedy="this appliance runs no tools itself; send your own")
    if not 1 <= len(tool.name) <= _MAX_NAME_CHARS:
        raise InvalidRequest(
            f"'{place}.name' has {len(tool.name)} characters; use 1 to {_MAX_NAME_CHARS}",
            param=f"{place}.name",
        )
    return Tool(
        name=tool.name,
        description=tool.description or "",
        parameters=tool.input_schema,
        is_strict=bool(tool.strict),
        field=f"{place}.input_schema",
    )


def _content_grammar(request: CountRequest) -> Grammar | None:
    wanted = request.output_config.format if request.output_config else None
    if wanted is None:
        return None
    if wanted.type != "json_schema" or wanted.schema is None:
        raise InvalidRequest(
            "'output_config.format' is not valid; send a 'json_schema' with its 'schema'",
            param="output_config.format",
        )
    return json_grammar(wanted.schema, field="output_config.format.schema")


def _refuse_unsupported(request: CountRequest) -> None:
    if request.mcp_servers:
        raise UnsupportedField("mcp_servers", remedy="call the tools yourself and send their results")
    if bytes(request.container) not in (b"", b"null"):
        raise UnsupportedField("container", remedy="leave it out")
    thinking = request.thinking
    if thinking is not None and thinking.type not in ("enabled", "disabled", "adaptive"):
        raise InvalidRequest(
            f"'thinking.type' is '{thinking.type[:50]}'; use enabled, disabled or adaptive",
            param="thinking.type",
        )
    effort = request.output_config.effort if request.output_config else None
    if effort is not None and effort not in _EFFORTS:
        raise InvalidRequest(
            f"'output_config.effort' is '{effort[:50]}'; use one of {', '.join(_EFFORTS)}",
            param="output_config.effort",
        )
