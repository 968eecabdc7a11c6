"""From a chat in any protocol to what the engine needs: prompt, grammar, and how to read the answer.

Protocols translate their JSON into a ChatTurn; whatever a model's chat template knows or lacks is settled
here. Knows no protocol and no engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from appliance.errors import InvalidRequest
from appliance.model_pool import ResidentModel
from appliance.observe.request_context import Stage, timed
from appliance.server.off_loop import run_in_thread, run_text_work
from appliance.text.answer_grammar import Tool, ToolUse, answer_grammar
from appliance.text.answer_reader import AnswerRules
from appliance.text.call_syntax import TAGGED, CallSyntax, call_syntax_of, thought_syntax_of
from appliance.text.chat_template import ChatTemplate, encode_prompt
from appliance.text.constraints import CompiledGrammar
from appliance.text.grammar import Grammar
from appliance.text.tool_prompt import has_tool_turns, with_tool_prompt

# Long enough for any grammar within the compiler's own limits on a slow machine.
_MAX_COMPILE_S = 10.0
# A prompt that opens a thought ends in its marker and at most a few blanks.
_TAIL_TOKENS = 8
# A template's time grows with them; no context holds so many.
_MAX_MESSAGES, _MAX_TOOLS = 10_000, 256
# What templates call the switch of thinking, and its strength.
_THINKING_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"


class ToolChoice(StrEnum):
    """Whether the answer calls tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """What a client wants to be answered.

    `messages` are as templates expect them: role, content as one text, tool_calls, tool_call_id, name.
    `callable_names` narrows the tools that may be called; all are told to the model. `thinks` None leaves it
    to the model. `options` are further values for the template.
    """

    messages: list[dict[str, Any]]  # Any: JSON
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice.AUTO
    callable_names: frozenset[str] | None = None
    is_parallel: bool = True
    content: Grammar | None = None
    thinks: bool | None = None
    effort: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChat:
    """What the engine needs of a turn."""

    prompt_token_ids: list[int]
    rules: AnswerRules
    grammar: CompiledGrammar | None


async def prepare_chat(model: ResidentModel, turn: ChatTurn) -> PreparedChat:
    """Raises InvalidRequest where the model has no chat template, or cannot honour what is asked."""
    template = _template_of(model)
    syntax = _syntax_of(template, turn)
    prompt = await _encoded(model, template, turn, syntax)
    thoughts = thought_syntax_of(template.source)
    rules = AnswerRules(
        calls=syntax,
        thoughts=thoughts,
        begins_in_thought=thoughts is not None and _ends_with(model, prompt, thoughts.open),
        must_call=turn.tool_choice is ToolChoice.REQUIRED,
    )
    grammar = await _answer_grammar(model, turn, rules)
    return PreparedChat(prompt_token_ids=prompt, rules=rules, grammar=grammar)


def with_system(model: ResidentModel, turn: ChatTurn) -> ChatTurn:
    """The model's own system prompt, where the conversation has none."""
    system = model.defaults.system
    if system is None or any(message["role"] in ("system", "developer") for message in turn.messages):
        return turn
    return replace(turn, messages=[{"role": "system", "content": system}, *turn.messages])


async def rendered_chat(model: ResidentModel, turn: ChatTurn) -> list[int]:
    """The prompt alone. Raises InvalidRequest where the model has no chat template, or it refuses."""
    template = _template_of(model)
    return await _encoded(model, template, turn, _syntax_of(template, turn))


def _template_of(model: ResidentModel) -> ChatTemplate:
    if model.chat_template is None:
        raise InvalidRequest(
            f"the model '{model.model_id}' has no chat template; use /v1/completions or /api/generate",
            param="messages",
        )
    return model.chat_template


def _syntax_of(template: ChatTemplate, turn: ChatTurn) -> CallSyntax | None:
    """How the answer would call; None where it may not."""
    is_calling = bool(turn.tools) and turn.tool_choice is not ToolChoice.NONE
    return (call_syntax_of(template.source) or TAGGED) if is_calling else None


async def compiled_content(model: ResidentModel, content: Grammar | None) -> CompiledGrammar | None:
    """The grammar of an answer without a chat, compiled off the event loop."""
    if content is None:
        return None
    return await _compiled(model, lambda: content, content.field)


async def _answer_grammar(model: ResidentModel, turn: ChatTurn, rules: AnswerRules) -> CompiledGrammar | None:
    """The grammar that the answer must keep to, compiled off the event loop; None for free text."""
    tools = [tool for tool in turn.tools if turn.callable_names is None or tool.name in turn.callable_names]
    if rules.calls is None:
        tools = []
    if not tools and turn.content is None:
        return None
    if tools and turn.content is not None and rules.calls is not None and rules.calls.is_only_at_start:
        raise InvalidRequest(
            f"'{turn.content.field}' and tools cannot be combined for this model, whose calls are JSON too; "
            "leave one of them out",
            param=turn.content.field,
        )
    use = ToolUse.REQUIRED if turn.tool_choice is ToolChoice.REQUIRED else ToolUse.AUTO

    def build() -> Grammar:
        grammar = answer_grammar(
            rules,
            model.tokenizer.control_ids,
            tools=tools,
            use=use,
            is_parallel=turn.is_parallel,
            content=turn.content,
        )
        assert grammar is not None
        return grammar

    return await _compiled(model, build, tools[0].field if tools else _field_of(turn.content))


async def _compiled(model: ResidentModel, build: Callable[[], Grammar], field: str) -> CompiledGrammar:
    with timed(Stage.GRAMMAR):
        return await run_in_thread(
            lambda: model.constraints.compile(build()), limit_s=_MAX_COMPILE_S, field=field
        )


def _field_of(grammar: Grammar | None) -> str:
    return "messages" if grammar is None else grammar.field


async def _encoded(
    model: ResidentModel, template: ChatTemplate, turn: ChatTurn, syntax: CallSyntax | None
) -> list[int]:
    """Render the turn and encode it; long ones off the event loop."""
    messages = turn.messages
    _check_count(len(messages), _MAX_MESSAGES, "messages")
    _check_count(len(turn.tools), _MAX_TOOLS, "tools")
    definitions = [_definition(tool) for tool in turn.tools] if syntax else []
    if call_syntax_of(template.source) is None and (definitions or has_tool_turns(messages)):
        messages, definitions = with_tool_prompt(messages, definitions), []
    num_chars = sum(len(message["content"]) for message in messages) + 500 * len(definitions)

    def work() -> list[int]:
        with timed(Stage.TEMPLATE):
            segments = template.segments(
                model.tokenizer, messages, tools=definitions or None, extra=_options(template, turn)
            )
        with timed(Stage.TOKENIZE):
            return encode_prompt(model.tokenizer, segments)

    return await run_text_work(num_chars, work)


def _check_count(num: int, limit: int, field: str) -> None:
    if num > limit:
        raise InvalidRequest(f"'{field}' has {num} and the limit is {limit}; send fewer", param=field)


def _options(template: ChatTemplate, turn: ChatTurn) -> dict[str, Any]:  # Any: JSON
    """The client's own values win over what its other fields amount to."""
    options: dict[str, Any] = {}
    if turn.thinks is not None:
        options |= {name: turn.thinks for name in _THINKING_SWITCHES if name in template.source}
    if turn.effort is not None and _EFFORT in template.source:
        options[_EFFORT] = turn.effort
    return {**options, **turn.options}


def _definition(tool: Tool) -> dict[str, Any]:  # Any: JSON
    parameters = dict(tool.parameters or {"type": "object", "properties": {}})
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _ends_with(model: ResidentModel, token_ids: list[int], marker: str) -> bool:
    tokenizer = model.tokenizer
    tail = token_ids[-_TAIL_TOKENS:]
    if tokenizer.control_ids.get(marker) in tail:
        return not tokenizer.decode(tail[tail.index(tokenizer.control_ids[marker]) + 1 :]).strip()
    return tokenizer.decode(tail).rstrip().endswith(marker)
