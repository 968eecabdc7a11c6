"""How model families write tool calls and thoughts into their answers, as data. Knows no parser."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """The texts around the names and arguments of calls.

    A group is `marker open (call (between call)*) close`, a call is `before_name NAME before_arguments
    ARGUMENTS after_arguments`. Without `between` each call is a group of its own, `separator` between groups.
    """

    marker: str
    open: str = ""
    before_name: str = ""
    before_arguments: str
    after_arguments: str = ""
    between: str | None = None
    close: str = ""
    separator: str = ""
    is_only_at_start: bool = False  # elsewhere the marker is ordinary text
    look_alike: str = ""  # regular expression of what at the start is no ordinary text
    optional_prefix: str = ""  # a control token that may come first
    call_id_length: int = 0  # 0: any


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtSyntax:
    """What stands around a model's thoughts."""

    open: str
    close: str


TAGGED = CallSyntax(
    marker="<tool_call>",
    open="\n",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    close="\n</tool_call>",
    separator="\n",
)
BARE_JSON = CallSyntax(
    marker='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    between='; {"name": "',
    is_only_at_start=True,
    look_alike=r'[ \n\t]*\{[ \n\t]*"name"',
    optional_prefix="<|python_tag|>",
)
MISTRAL_LIST = CallSyntax(
    marker="[TOOL_CALLS]",
    open="[",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    between=", ",
    close="]",
    call_id_length=9,
)
MISTRAL_ARGS = CallSyntax(marker="[TOOL_CALLS]", before_arguments="[ARGS]", call_id_length=9)

_THOUGHTS = (
    ThoughtSyntax(open="<think>", close="</think>"),
    ThoughtSyntax(open="[THINK]", close="[/THINK]"),
)


def call_syntax_of(template: str) -> CallSyntax | None:
    """How the model of this chat template calls tools; None where the template knows no tools."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL_LIST
    if "<tool_call>" in template:
        return TAGGED
    if "tools" not in template:
        return None
    return BARE_JSON if '"parameters"' in template or "<|python_tag|>" in template else TAGGED


def thought_syntax_of(template: str) -> ThoughtSyntax | None:
    """How the model of this chat template thinks; None where it does not."""
    return next((syntax for syntax in _THOUGHTS if syntax.close in template), None)
