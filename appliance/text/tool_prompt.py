"""Tools for models whose chat template knows none: told in the system message, in plain words and JSON.

Calls and results of earlier turns become ordinary turns. Knows messages; knows no template.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from appliance.text.call_syntax import TAGGED

Message = dict[str, Any]  # Any: JSON

_INTRODUCTION = """\
You can call the functions below. Each is described by a JSON object within <tools></tools>:
<tools>
{definitions}
</tools>
To call one, write its name and arguments as a JSON object within tags, and nothing after them:
{example}
The results come back within <tool_response></tool_response>.
When no function is needed, answer in plain words."""


def with_tool_prompt(messages: Sequence[Message], definitions: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages with the tools in the system message and no tool turns left."""
    plain = _merged([_plain(message) for message in messages])
    if not definitions:
        return plain
    introduction = _INTRODUCTION.format(
        definitions="\n".join(json.dumps(definition, ensure_ascii=False) for definition in definitions),
        example=_written("NAME", '{"PARAMETER": "VALUE"}'),
    )
    if plain and plain[0]["role"] == "system":
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{introduction}".lstrip()}
        return [first, *plain[1:]]
    return [{"role": "system", "content": introduction}, *plain]


def has_tool_turns(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


def _plain(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [
        _written(call["function"]["name"], _json(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]
    return {"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))}


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Join a user's turns in a row: the results of several calls are one turn to templates."""
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"] == "user":
            merged[-1] = {**merged[-1], "content": f"{merged[-1]['content']}\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def _written(name: str, arguments: str) -> str:
    syntax = TAGGED
    return (
        f"{syntax.marker}{syntax.open}{syntax.before_name}{name}{syntax.before_arguments}{arguments}"
        f"{syntax.after_arguments}{syntax.close}"
    )


def _json(value: Any) -> str:  # Any: JSON
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
