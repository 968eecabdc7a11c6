"""Reads what OpenAI clients say of an answer's form: response formats, tools, grammars. Knows no model."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from appliance.errors import InvalidRequest, UnsupportedField
from appliance.server.chat_turn import ToolChoice
from appliance.server.openai_schemas import ChatRequest, ResponseFormat, SamplingFields, ToolDefinition
from appliance.text.answer_grammar import Tool
from appliance.text.grammar import (
    Grammar,
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)

_MAX_TOOLS = 256
_MAX_CHOICES = 10_000
_MAX_SOURCE_CHARS = 128 * 1024
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class ToolRules(NamedTuple):
    """Which tools there are, and which of them the answer may or must call."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    callable_names: frozenset[str] | None

    @property
    def is_named(self) -> bool:
        """Whether the client named the one function to call, once."""
        return (
            self.choice is ToolChoice.REQUIRED
            and self.callable_names is not None
            and len(self.callable_names) == 1
        )


def content_grammar(request: SamplingFields) -> Grammar | None:
    """Return what the content must look like, None for free text. Raises InvalidRequest, UnsupportedField."""
    response_format = request.response_format if isinstance(request, ChatRequest) else None
    structured = request.structured_outputs
    given: list[tuple[str, Any, Callable[[Any, str], Grammar | None]]] = [  # Any: as each reader takes it
        ("response_format", response_format, _of_response_format),
        ("guided_json", request.guided_json, _of_json),
        ("guided_regex", request.guided_regex, _of_regex),
        ("guided_choice", request.guided_choice, _of_choice),
        ("guided_grammar", request.guided_grammar, _of_lark),
        ("regex", request.regex, _of_regex),
        ("grammar", request.grammar, _of_lark),
    ]
    if structured is not None:
        given += [
            ("structured_outputs.json", structured.json, _of_json),
            ("structured_outputs.regex", structured.regex, _of_regex),
            ("structured_outputs.choice", structured.choice, _of_choice),
            ("structured_outputs.grammar", structured.grammar, _of_lark),
            ("structured_outputs.json_object", structured.json_object or None, _of_any_json),
        ]
    grammars = {name: read(value, name) for name, value, read in given if value is not None}
    found = {name: grammar for name, grammar in grammars.items() if grammar is not None}
    if len(found) > 1:
        first, second = list(found)[:2]
        raise InvalidRequest(f"'{first}' and '{second}' cannot be combined; leave one out", param=second)
    return next(iter(found.values()), None)


def tool_rules(request: ChatRequest) -> ToolRules:
    """Raises InvalidRequest naming the tool at fault."""
    return tool_choice_of(request.tool_choice, tools_of(request.tools or ()))


def tool_choice_of(wanted: Any, tools: tuple[Tool, ...]) -> ToolRules:  # Any: JSON
    """Raises InvalidRequest where the choice names no tool, or there is none to be called."""
    choice, callable_names = _tool_choice(wanted, [tool.name for tool in tools])
    if choice is ToolChoice.REQUIRED and not tools:
        raise InvalidRequest("'tool_choice' asks for a call and there are no 'tools'", param="tool_choice")
    return ToolRules(tools, choice, callable_names)


def tools_of(definitions: Sequence[ToolDefinition], *, inside: str = ".function") -> tuple[Tool, ...]:
    """`inside` is where the protocol has a function's fields. Raises InvalidRequest naming the tool."""
    tools = tuple(_tool(tool, f"tools[{index}]", inside) for index, tool in enumerate(definitions))
    if len(tools) > _MAX_TOOLS:
        raise InvalidRequest(f"'tools' has {len(tools)} entries; the most is {_MAX_TOOLS}", param="tools")
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"'tools' has two functions named '{twice}'; rename one", param="tools")
    return tools


def _of_response_format(value: ResponseFormat, field: str) -> Grammar | None:
    match value.type:
        case "text":
            return None
        case "json_object":
            return json_grammar(
                value.schema_ if value.schema_ is not None else {"type": "object"}, field=field
            )
        case "json_schema":
            schema = value.json_schema.schema_ if value.json_schema else value.schema_
            if schema is None:
                raise InvalidRequest(
                    f"'{field}.json_schema.schema' is missing; send a JSON schema",
                    param=f"{field}.json_schema",
                )
            return json_grammar(schema, field=f"{field}.json_schema")
        case "grammar" if value.grammar is not None:
            return _of_lark(value.grammar, field)
        case "regex" if value.pattern is not None:
            return _of_regex(value.pattern, field)
    raise InvalidRequest(
        f"'{field}.type' is '{value.type[:50]}'; use text, json_object or json_schema", param=f"{field}.type"
    )


def _of_json(value: Any, field: str) -> Grammar:  # Any: JSON
    if isinstance(value, str):
        try:
            value = json.loads(_bounded(value, field))
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"'{field}' is not JSON: {error}", param=field) from None
    return json_grammar(value, field=field)


def _of_any_json(_: bool, field: str) -> Grammar:
    return json_grammar({"type": "object"}, field=field)


def _of_regex(value: str, field: str) -> Grammar:
    return regex_grammar(_bounded(value, field), field=field)


def _of_choice(value: list[str], field: str) -> Grammar:
    if not value or len(value) > _MAX_CHOICES or not all(value):
        raise InvalidRequest(f"'{field}' must hold 1 to {_MAX_CHOICES} texts, none empty", param=field)
    return choice_grammar(value, field=field)


def _of_lark(value: str, field: str) -> Grammar:
    """Lark, or the notation of another local server, told by its `::=`."""
    return lark_grammar(_bounded(value, field), field=field)


def _bounded(source: str, field: str) -> str:
    if len(source) > _MAX_SOURCE_CHARS:
        raise InvalidRequest(
            f"'{field}' has {len(source)} characters; the most is {_MAX_SOURCE_CHARS}", param=field
        )
    return source


def _tool(definition: ToolDefinition, place: str, inside: str) -> Tool:
    if definition.type != "function":
        raise UnsupportedField(f"{place}.type", remedy="send tools of type 'function'")
    function = definition.function
    if function is None:
        raise InvalidRequest(f"'{place}.function' is missing", param=f"{place}.function")
    if not _TOOL_NAME.fullmatch(function.name):
        raise InvalidRequest(
            f"'{place}{inside}.name' is '{function.name[:80]}'; "
            "use 1 to 64 letters, digits, '_', '.' and '-'",
            param=f"{place}{inside}.name",
        )
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters,
        is_strict=bool(function.strict),
        field=f"{place}{inside}.parameters",
    )


def _tool_choice(value: Any, names: list[str]) -> tuple[ToolChoice, frozenset[str] | None]:  # Any: JSON
    """A word, one function by name, or a choice among some of the tools."""
    match value:
        case None:
            return ToolChoice.AUTO, None
        case "none" | "auto" | "required":
            return ToolChoice(value), None
        case "any":
            return ToolChoice.REQUIRED, None
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return ToolChoice.REQUIRED, _known([name], names)
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)},
        }:
            return ToolChoice(mode), _known([_function_name(tool) for tool in tools], names)
    raise InvalidRequest(
        "'tool_choice' is not valid; use none, auto, required or "
        '{"type": "function", "function": {"name": "..."}}',
        param="tool_choice",
    )


def _function_name(tool: Any) -> str:  # Any: JSON
    match tool:
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
    raise InvalidRequest("'tool_choice.allowed_tools.tools' holds a tool without a name", param="tool_choice")


def _known(wanted: list[str], names: list[str]) -> frozenset[str]:
    unknown = next((name for name in wanted if name not in names), None)
    if unknown is not None or not wanted:
        raise InvalidRequest(
            f"'tool_choice' names '{(unknown or '')[:80]}', which is not among 'tools'", param="tool_choice"
        )
    return frozenset(wanted)
