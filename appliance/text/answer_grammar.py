"""The grammar of a whole answer: thoughts first, then content, calls or both. Knows syntaxes, no parser.

A model may think as it likes; what follows keeps to what was asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from appliance.text.answer_reader import AnswerRules
from appliance.text.call_syntax import CallSyntax, ThoughtSyntax
from appliance.text.grammar import Grammar, GrammarPart, json_part, lark_text

# Text that goes on to the end of the answer, or to where a marker begins.
_CONTENT = "content"
_COMMON_RULES = (r"TEXT: /(.|\n)*/", r"BLANKS: /[ \n]{1,4}/")


class ToolUse(StrEnum):
    """Whether an answer may or must call."""

    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call. `is_strict`: its schema is honoured in full or refused."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None  # Any: a JSON schema
    is_strict: bool = False
    field: str = "tools"


def answer_grammar(
    rules: AnswerRules,
    control_ids: Mapping[str, int],
    *,
    tools: Sequence[Tool] = (),
    use: ToolUse = ToolUse.AUTO,
    is_parallel: bool = True,
    content: Grammar | None = None,
) -> Grammar | None:
    """Return what an answer must keep to, None where it may be anything.

    `tools` are those that may be called; `content` binds what is no thought and no call. `control_ids` are
    the model's control tokens by their text: a marker may be one of them. Raises InvalidRequest.
    """
    writer = _Writer(control_ids)
    if tools:
        assert rules.calls is not None, "tools without a syntax to call them"
        field = tools[0].field
        parts = _tool_parts(tools)
        body = writer.calls(rules.calls, tools, use, is_parallel=is_parallel, has_content=content is not None)
    elif content is not None:
        field, parts, body = content.field, [], f"@{_CONTENT}"
    else:
        return None
    if content is not None:
        parts = [*parts, *content.parts, GrammarPart(name=_CONTENT, body=_body_of(content))]
    start = writer.thought(rules.thoughts, body, is_open=rules.begins_in_thought)
    main = "\n".join([f"start: {start}", *writer.rules, *_COMMON_RULES])
    return Grammar(main=main, parts=tuple(parts), field=field)


def _body_of(grammar: Grammar) -> str:
    return json.dumps({"lark_grammar": grammar.main})


def _tool_parts(tools: Sequence[Tool]) -> list[GrammarPart]:
    return [
        json_part(_part_name(index), _as_object(tool), field=tool.field, is_strict=tool.is_strict)
        for index, tool in enumerate(tools)
    ]


def _as_object(tool: Tool) -> dict[str, Any]:
    """Arguments are always an object; without a schema, any."""
    schema = dict(tool.parameters or {})
    if not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"}:
        schema["type"] = "object"
    return schema


class _Writer:
    """Collects the rules of one grammar."""

    def __init__(self, control_ids: Mapping[str, int]) -> None:
        self.rules: list[str] = []
        self._control_ids = control_ids

    def thought(self, syntax: ThoughtSyntax | None, body: str, *, is_open: bool) -> str:
        """Put a thought before the body: one that the prompt has opened, or one that the model may open."""
        if syntax is None:
            return body
        self._until("thought_rest", syntax.close)
        self.rules.append(f"thought: {self._literal(syntax.open)} thought_rest")
        self.rules.append(f"after_thought: {body}")
        return f"{'thought_rest' if is_open else 'thought?'} BLANKS? after_thought"

    def calls(
        self,
        syntax: CallSyntax,
        tools: Sequence[Tool],
        use: ToolUse,
        *,
        is_parallel: bool,
        has_content: bool,
    ) -> str:
        """Return calls alone, or calls and content as `use` and `has_content` say."""
        self._group(syntax, tools, is_parallel=is_parallel)
        marker = self._literal(syntax.marker)
        prefix = f"<[{self._control_ids[syntax.optional_prefix]}]>?" if self._has_prefix(syntax) else ""
        repeats = is_parallel and syntax.between is None
        more = f"({self._literal(syntax.separator)} {marker} group)*" if repeats else ""
        self.rules.append(f"all_calls: {prefix} {marker} group {more}")
        if use is ToolUse.REQUIRED:
            return "all_calls"
        if has_content:
            return f"all_calls | @{_CONTENT}"
        if syntax.is_only_at_start:
            self.rules.append(f"OTHER_TEXT: /(.|\\n)*/ & ~/{syntax.look_alike}(.|\\n)*/")
            return "all_calls | OTHER_TEXT"
        self._until("text_before", syntax.marker)
        if not repeats:
            return "TEXT | text_before group"
        return "(text_before group)* TEXT"

    def _group(self, syntax: CallSyntax, tools: Sequence[Tool], *, is_parallel: bool) -> None:
        """`group` is what follows a marker, `call` a name with its arguments and what stands around it."""
        between = self._literal(syntax.before_arguments)
        named = [f"{lark_text(tool.name)} {between} @{_part_name(i)}" for i, tool in enumerate(tools)]
        self.rules.append(f"named: {' | '.join(named)}")
        self.rules.append(
            f"call: {self._literal(syntax.before_name)} named {self._literal(syntax.after_arguments)}"
        )
        more = f"({self._literal(syntax.between)} call)*" if is_parallel and syntax.between else ""
        self.rules.append(f"group: {self._literal(syntax.open)} call {more} {self._literal(syntax.close)}")

    def _has_prefix(self, syntax: CallSyntax) -> bool:
        return syntax.optional_prefix in self._control_ids

    def _until(self, name: str, marker: str) -> None:
        """A rule for any text up to and with the first marker."""
        if marker in self._control_ids:
            self.rules.append(f"{name}: TEXT {self._literal(marker)}")
        else:
            self.rules.append(f"{name}[lazy]: TEXT {self._literal(marker)}")

    def _literal(self, text: str) -> str:
        if text in self._control_ids:
            return f"<[{self._control_ids[text]}]>"
        return lark_text(text) if text else ""


def _part_name(index: int) -> str:
    return f"arguments_{index}"
