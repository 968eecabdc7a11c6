"""From a response's items to a chat turn. Knows items, roles and tools; knows no sampling and no store."""

from collections.abc import Sequence
from typing import Any

from appliance.errors import InvalidRequest, UnsupportedField
from appliance.server.chat_turn import ChatTurn
from appliance.server.openai_output import ToolRules, tool_choice_of, tools_of
from appliance.server.openai_prompts import (
    EFFORTS,
    EFFORTS_WITHOUT_THOUGHT,
    ROLES,
    template_call,
)
from appliance.server.openai_schemas import FunctionCall, ToolCall, ToolDefinition
from appliance.server.responses_schemas import InputItem, InputPart, Json, ResponsesRequest
from appliance.text.grammar import Grammar, json_grammar

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def response_turn(
    wanted: ResponsesRequest, before: Sequence[InputItem], new: Sequence[InputItem]
) -> ChatTurn:
    """Return the request in no protocol's words. `before` was said in earlier responses.

    Instructions hold for this request alone. Raises InvalidRequest, UnsupportedField.
    """
    messages = template_messages([*before, *new], num_before=len(before))
    if wanted.instructions:
        messages.insert(0, {"role": "system", "content": wanted.instructions})
    if not messages:
        raise InvalidRequest("'input' is empty; send a text or at least one item", param="input")
    effort = wanted.reasoning.effort if wanted.reasoning else None
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequest(
            f"'reasoning.effort' is '{effort[:50]}'; use one of {', '.join(EFFORTS)}",
            param="reasoning.effort",
        )
    rules = _tool_rules(wanted)
    return ChatTurn(
        messages=messages,
        tools=rules.tools,
        tool_choice=rules.choice,
        callable_names=rules.callable_names,
        is_parallel=wanted.parallel_tool_calls is not False and not rules.is_named,
        content=_content_grammar(wanted),
        thinks=None if effort is None else effort not in EFFORTS_WITHOUT_THOUGHT,
        effort=effort,
    )


def template_messages(items: Sequence[InputItem], *, num_before: int = 0) -> list[Json]:
    """Return messages as templates expect them: calls and thoughts belong to one turn of the assistant."""
    messages: list[Json] = []
    names: dict[str, str] = {}
    thought = ""
    for index, item in enumerate(items):
        place = f"input[{max(index - num_before, 0)}]"
        match item.type:
            case "reasoning":
                content = item.content if isinstance(item.content, list) else item.summary
                thought += _text(content or [], place)
                continue
            case "message":
                messages.append(_message(item, place))
            case "function_call":
                _add_call(messages, names, item, place, opens=bool(thought))
            case "function_call_output":
                messages.append(_output(names, item, place))
            case _:
                raise InvalidRequest(
                    f"'{place}.type' is '{item.type[:50]}'; use message, function_call, "
                    "function_call_output, reasoning or item_reference",
                    param=f"{place}.type",
                )
        if thought and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = thought
        thought = ""
    return messages


def _message(item: InputItem, place: str) -> Json:
    role = ROLES.get(item.role or "")
    if role is None or role == "tool":
        raise InvalidRequest(
            f"'{place}.role' is '{(item.role or '')[:50]}'; use user, assistant, system or developer",
            param=f"{place}.role",
        )
    if item.content is None:
        raise InvalidRequest(
            f"'{place}.content' is missing; send a text or text parts", param=f"{place}.content"
        )
    return {"role": role, "content": _text(item.content, f"{place}.content")}


def _add_call(
    messages: list[Json], names: dict[str, str], item: InputItem, place: str, *, opens: bool
) -> None:
    """Calls in a row, and those after the assistant's text, are one turn."""
    if not item.call_id or not item.name:
        missing = "name" if item.call_id else "call_id"
        raise InvalidRequest(f"'{place}.{missing}' is missing", param=f"{place}.{missing}")
    names[item.call_id] = item.name
    call = ToolCall(id=item.call_id, function=FunctionCall(name=item.name, arguments=item.arguments))
    if opens or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(template_call(call))


def _output(names: dict[str, str], item: InputItem, place: str) -> Json:
    if item.call_id not in names:
        raise InvalidRequest(
            f"'{place}.call_id' is '{(item.call_id or '')[:80]}', and no function_call before it has that id",
            param=f"{place}.call_id",
        )
    content = _text(item.output or "", f"{place}.output")
    return {"role": "tool", "content": content, "tool_call_id": item.call_id, "name": names[item.call_id]}


def _text(content: str | list[InputPart], place: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{place}[{index}]") for index, part in enumerate(content))


def _part_text(part: InputPart, place: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if (part.type not in _TEXT_PARTS and part.type != "refusal") or text is None:
        raise InvalidRequest(
            f"'{place}' is a part of type '{part.type[:50]}'; send parts of type 'input_text' or "
            "'output_text' that have a 'text'",
            param=place,
        )
    return text


def _tool_rules(wanted: ResponsesRequest) -> ToolRules:
    definitions = []
    for index, tool in enumerate(wanted.tools or ()):
        if tool.type != "function":
            raise UnsupportedField(f"tools[{index}].type", remedy="send tools of type 'function'")
        definitions.append(ToolDefinition(function=tool))
    tools = tools_of(definitions, inside="")
    choice = wanted.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools" and "tools" in choice:
        inner: dict[str, Any] = {"mode": choice.get("mode"), "tools": choice["tools"]}
        choice = {"type": "allowed_tools", "allowed_tools": inner}
    return tool_choice_of(choice, tools)


def _content_grammar(wanted: ResponsesRequest) -> Grammar | None:
    text_format = wanted.text.format if wanted.text else None
    if text_format is None or text_format.type == "text":
        return None
    if text_format.type == "json_object":
        return json_grammar({"type": "object"}, field="text.format")
    if text_format.type != "json_schema":
        raise InvalidRequest(
            f"'text.format.type' is '{text_format.type[:50]}'; use text, json_object or json_schema",
            param="text.format.type",
        )
    if text_format.schema_ is None:
        raise InvalidRequest(
            "'text.format.schema' is missing; send a JSON schema", param="text.format.schema"
        )
    return json_grammar(text_format.schema_, field="text.format.schema")
