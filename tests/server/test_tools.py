"""Tool calls over HTTP, for every family of chat templates: choice, deltas, arguments, how an answer ends."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
import pytest
from litestar.testing import TestClient

from formats.gguf_builder import CHATML
from server.rig import Rig, chat, make_rig, sse_events

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "time"}},
]
# What a template says of tools decides how its model is taken to call them.
FAMILIES = {
    "none": "",
    "tagged": "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}",
    "bare": "{% if tools %}{{ tools | tojson }} use {{ '\"parameters\"' }}{% endif %}",
    "list": "{% if tools %}{{ tools | tojson }} [TOOL_CALLS]{% endif %}",
    "args": "{% if tools %}{{ tools | tojson }} [TOOL_CALLS][ARGS]{% endif %}",
}
WRITTEN = {
    "none": '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    "tagged": '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    "bare": '{"name": "%s", "parameters": %s}',
    "list": '[TOOL_CALLS][{"name": "%s", "arguments": %s}]',
    "args": "[TOOL_CALLS]%s[ARGS]%s",
}
TWO = {
    "none": WRITTEN["none"] + "\n" + WRITTEN["none"],
    "tagged": WRITTEN["tagged"] + "\n" + WRITTEN["tagged"],
    "bare": WRITTEN["bare"] + "; " + WRITTEN["bare"],
    "list": '[TOOL_CALLS][{"name": "%s", "arguments": %s}, {"name": "%s", "arguments": %s}]',
    "args": WRITTEN["args"] + WRITTEN["args"],
}
PARIS = '{"city": "Paris", "days": 3}'


@contextmanager
def family(name: str) -> Iterator[tuple[Rig, TestClient[Any]]]:
    template = FAMILIES[name] + CHATML
    with (
        make_rig(chat_template=template, context_length=4096, num_blocks=512) as rig,
        rig.client() as client,
    ):
        yield rig, client
        rig.wait_idle()


def ask(client: TestClient[Any], **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same request whole and streamed, the stream put together: they must agree but for identifiers."""
    body = chat(**{"tools": TOOLS, "max_tokens": 200, **fields})
    response = client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    whole = response.json()["choices"][0]
    streamed = joined(sse_events(client.post(CHAT, json={**body, "stream": True}).content))
    assert streamed["finish_reason"] == whole["finish_reason"]
    assert (streamed["content"] or None) == (whole["message"]["content"] or None)
    if whole["finish_reason"] != "length":
        assert named(streamed["tool_calls"]) == named(whole["message"].get("tool_calls", []))
    return whole, streamed


def named(calls: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def joined(events: list[Any]) -> dict[str, Any]:
    """What a client makes of a stream; every delta is checked on the way."""
    answer: dict[str, Any] = {"content": "", "tool_calls": [], "finish_reason": None}
    for event in events:
        (choice,) = event["choices"]
        assert answer["finish_reason"] is None, "a chunk after the last"
        answer["finish_reason"] = choice["finish_reason"]
        answer["content"] += choice["delta"].get("content", "")
        for call in choice["delta"].get("tool_calls", ()):
            add_call(answer["tool_calls"], call)
    return answer


def add_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    if delta["index"] == len(calls):
        assert delta["id"]
        assert delta["type"] == "function"
        assert delta["function"]["name"]
        calls.append({"id": delta["id"], "function": dict(delta["function"])})
        return
    assert delta["index"] == len(calls) - 1, "calls are told one after the other"
    assert set(delta) == {"index", "function"}
    assert set(delta["function"]) == {"arguments"}
    calls[-1]["function"]["arguments"] += delta["function"]["arguments"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_arrives_with_its_name_and_arguments(name: str, choice: Any) -> None:
    with family(name) as (rig, client):
        rig.reply(WRITTEN[name] % ("weather", PARIS))
        whole, _ = ask(client, tool_choice=choice)
        (call,) = whole["message"]["tool_calls"]
        assert whole["finish_reason"] == "tool_calls"
        assert whole["message"]["content"] is None
        assert call["type"] == "function"
        assert call["function"] == {"name": "weather", "arguments": PARIS}


@pytest.mark.parametrize("name", FAMILIES)
def test_two_calls_have_their_own_places_and_identifiers(name: str) -> None:
    with family(name) as (rig, client):
        rig.reply(TWO[name] % ("weather", PARIS, "time", "{}"))
        whole, streamed = ask(client, tool_choice="required")
        assert named(whole["message"]["tool_calls"]) == [("weather", PARIS), ("time", "{}")]
        assert len({call["id"] for call in streamed["tool_calls"]}) == 2


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_without_parallel_calls_there_is_one(name: str, choice: str) -> None:
    with family(name) as (rig, client):
        rig.reply(TWO[name] % ("weather", PARIS, "time", "{}"))
        whole, _ = ask(client, tool_choice=choice, parallel_tool_calls=False)
        assert named(whole["message"]["tool_calls"]) == [("weather", PARIS)]
        assert whole["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_that_would_rather_talk_must_call_where_a_call_is_required(name: str) -> None:
    with family(name) as (rig, client):
        rig.reply('hello world "}')
        whole, _ = ask(client, tool_choice={"type": "function", "function": {"name": "time"}}, max_tokens=400)
        assert {call["function"]["name"] for call in whole["message"].get("tool_calls", [])} <= {"time"}
        assert not whole["message"]["content"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_that_talks_is_let_talk(name: str) -> None:
    with family(name) as (rig, client):
        rig.reply("hello world")
        whole, _ = ask(client, tool_choice="auto")
        assert whole["message"]["content"] == "hello world"
        assert "tool_calls" not in whole["message"]
        assert whole["finish_reason"] == "stop"


@pytest.mark.parametrize("name", FAMILIES)
def test_with_the_choice_none_nothing_is_a_call(name: str) -> None:
    with family(name) as (rig, client):
        written = WRITTEN[name] % ("weather", PARIS)
        rig.reply(written)
        whole, _ = ask(client, tool_choice="none")
        assert whole["message"]["content"] == written
        assert whole["finish_reason"] == "stop"


@pytest.mark.parametrize("name", ["none", "tagged", "list", "args"])
def test_words_before_a_call_are_content(name: str) -> None:
    with family(name) as (rig, client):
        rig.reply("Let me see.\n" + WRITTEN[name] % ("time", "{}"))
        whole, _ = ask(client)
        assert whole["message"]["content"] == "Let me see."
        assert named(whole["message"]["tool_calls"]) == [("time", "{}")]


@pytest.mark.parametrize("name", FAMILIES)
def test_arguments_keep_to_the_schema_whatever_the_model_wants(name: str) -> None:
    with family(name) as (rig, client):
        rig.reply(WRITTEN[name] % ("weather", '{"city": 5, "days": "many", "x": [}'))
        whole, _ = ask(client, max_tokens=600)
        if whole["finish_reason"] == "tool_calls":
            for call in whole["message"]["tool_calls"]:
                if call["function"]["name"] == "weather":
                    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_cut_within_a_call_says_length(name: str) -> None:
    with family(name) as (rig, client):
        rig.reply(WRITTEN[name] % ("weather", '{"city": "%s"}' % ("x" * 80)))
        for most in (1, 2, 5, *range(8, 97, 11)):
            whole, streamed = ask(client, tool_choice="required", max_tokens=most)
            assert whole["finish_reason"] == "length"
            assert "tool_calls" not in whole["message"]
            assert not whole["message"]["content"]  # nor what begins a call's marker
            assert streamed["finish_reason"] == "length"


@pytest.mark.parametrize("number", [9223372036854775807, 9007199254740993])
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_digits_of_arguments_are_unchanged(number: int, kind: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": kind, "const": number}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with family("tagged") as (rig, client):
        rig.reply("\x00")
        whole, _ = ask(client, tools=tools, tool_choice="required", parallel_tool_calls=False)
        (call,) = whole["message"]["tool_calls"]
        assert str(number) in call["function"]["arguments"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": 'a"b'}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}
                ]
            },
            "tools[0].function.parameters",
        ),
    ],
)
def test_wrong_tools_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with family("tagged") as (_, client):
        response = client.post(CHAT, json=chat(**{"tools": TOOLS, **fields}))
        assert response.status_code == 400, response.text
        found = response.json()["error"]["param"]
        assert (
            found.replace("[", ".").replace("]", "").startswith(param.replace("[", ".").replace("]", "")[:5])
        )


def test_a_loose_tool_may_have_a_schema_with_words_nobody_knows() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, "not": {"required": ["b"]}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    with family("tagged") as (rig, client):
        rig.reply(WRITTEN["tagged"] % ("f", '{"a": "x"}'))
        whole, _ = ask(client, tools=tools)
        assert named(whole["message"]["tool_calls"]) == [("f", '{"a": "x"}')]


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_and_results_of_earlier_turns_are_in_the_prompt(name: str) -> None:
    """Templates that know no tools are told of them in plain turns; the tests' own drop them."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": PARIS}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"},
    ]
    with family(name) as (rig, client):
        rig.reply("It is 12 degrees.")
        with_tools, _ = ask(client, messages=messages)
        without, _ = ask(client, messages=messages, tools=None)
        assert with_tools["message"]["content"] == without["message"]["content"] == "It is 12 degrees."
        if name == "none":
            prompt = rig.runner.batches[0].sequences[0].known_token_ids
            text = rig.model.tokenizer.decode(prompt)
            assert '"arguments": {"city": "Paris", "days": 3}' in text
            assert "<tool_response>\n12 degrees\n</tool_response>" in text


def test_tools_and_a_response_format_go_together_where_they_can_be_told_apart() -> None:
    schema = {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    with family("tagged") as (rig, client):
        rig.reply('{"v": 3}')
        whole, _ = ask(client, response_format=wanted)
        assert json.loads(whole["message"]["content"]) == {"v": 3}
        rig.reply(WRITTEN["tagged"] % ("time", "{}"))
        whole, _ = ask(client, response_format=wanted)
        assert whole["finish_reason"] == "tool_calls"
    with family("bare") as (_, client):
        response = client.post(CHAT, json=chat(tools=TOOLS, response_format=wanted))
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("response_format")
