"""Answers that must look like something, over HTTP: the model's wishes bend to the grammar."""

import json
from typing import Any

import jsonschema
import pytest
from litestar.testing import TestClient

from server.rig import Rig, chat, chat_text, completion, sse_events

CHAT = "/v1/chat/completions"
OBJECT = {
    "type": "object",
    "properties": {"v": {"type": "string"}},
    "required": ["v"],
    "additionalProperties": False,
}


def json_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": schema}}


def forced(value: Any) -> dict[str, Any]:
    properties = {"v": {"const": value}}
    return json_format(
        {"type": "object", "properties": properties, "required": ["v"], "additionalProperties": False}
    )


@pytest.mark.parametrize("text", ["🌶️你好ďábel🤣", "x🏳️‍🌈 👩🏽‍💻 e\u0301x ❤️", 'quo"te\\ and\nline'])
def test_a_forced_text_comes_whole_and_unbroken_in_a_stream(client: TestClient, text: str) -> None:
    events = sse_events(client.post(CHAT, json=chat(stream=True, response_format=forced(text))).content)
    deltas = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert all("\ufffd" not in delta for delta in deltas)
    assert json.loads("".join(deltas)) == {"v": text}
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    whole = client.post(CHAT, json=chat(response_format=forced(text))).json()
    assert whole["choices"][0]["message"]["content"] == chat_text(events)


@pytest.mark.parametrize("number", [9223372036854775807, 9007199254740993, -9007199254740995, 10**30, 1.5])
def test_digits_of_a_forced_number_are_unchanged(client: TestClient, number: float) -> None:
    answer = client.post(CHAT, json=chat(response_format=forced(number))).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"v": number}


def test_what_the_model_wants_counts_where_the_schema_allows_it(rig: Rig, client: TestClient) -> None:
    rig.reply('{"v": "hello world"}')
    answer = client.post(CHAT, json=chat(response_format=json_format(OBJECT))).json()["choices"][0]
    assert json.loads(answer["message"]["content"]) == {"v": "hello world"}
    assert answer["finish_reason"] == "stop"


def test_an_answer_ends_at_the_closing_brace_without_an_end_token(rig: Rig, client: TestClient) -> None:
    rig.reply('{"a": 1}' + "\n " * 80, ends=False)
    answer = client.post(CHAT, json=chat(response_format={"type": "json_object"}, max_tokens=100)).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"] == '{"a": 1}'


def test_blanks_between_json_tokens_are_bounded(rig: Rig, client: TestClient) -> None:
    rig.reply("{" + "\n" * 200, ends=False)
    answer = client.post(CHAT, json=chat(response_format={"type": "json_object"}, max_tokens=60)).json()
    assert answer["choices"][0]["message"]["content"].count("\n") <= 20


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "string", "pattern": "^(?=a)b$"}, "look"),
        ({"type": "string", "pattern": "("}, "regex"),
        ({"$ref": "#"}, "itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "itself"),
        ({"$ref": "#/$defs/nope"}, "nope"),
        ({"$ref": "http://example.com/schema.json"}, "example.com"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "nonsense"}, "nonsense"),
        (False, "false"),
        ({"enum": []}, "empty"),
        ({"anyOf": [{"$ref": "#"}]}, "honoured"),
        ({"type": "integer", "minimum": 2**60}, "exact"),
        ({"properties": {"a": {"const": 2**60}}}, "2**53"),
        (5, "schema"),
        ("x", "schema"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_schema_that_cannot_be_honoured_is_refused(
    client: TestClient, schema: Any, word: str, is_streamed: bool
) -> None:
    response = client.post(CHAT, json=chat(stream=is_streamed, response_format=json_format(schema)))
    assert response.status_code == 400, response.text
    assert word in response.json()["error"]["message"]
    assert response.json()["error"]["param"].startswith("response_format")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^hello there indeed\\!$"},
        {"type": "integer", "minimum": 0, "maximum": 20000000000},
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
        {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 60},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        {"enum": ["a", 3, None, True, {"b": []}]},
        {
            "type": "object",
            "properties": {
                "l": {"anyOf": [{"type": "string", "maxLength": 4}, {"$ref": "#"}]},
                "r": {"$ref": "#/properties/l/anyOf/0"},
            },
            "required": ["r"],
            "additionalProperties": False,
        },
        {
            "$defs": {
                "a": {
                    "type": "object",
                    "properties": {"b": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/b"}]}},
                    "required": ["b"],
                    "additionalProperties": False,
                },
                "b": {
                    "type": "object",
                    "properties": {"a": {"$ref": "#/$defs/a"}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            },
            "$ref": "#/$defs/a",
        },
    ],
)
def test_an_answer_fits_its_schema(rig: Rig, client: TestClient, schema: Any) -> None:
    rig.reply('"}]0')
    answer = client.post(CHAT, json=chat(response_format=json_format(schema), max_tokens=200)).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_deeply_nested_schemas_are_taken(client: TestClient) -> None:
    schema: Any = {"const": "x"}
    for number in range(60):
        schema = {
            "type": "object",
            "properties": {f"p{number}": schema},
            "required": [f"p{number}"],
            "additionalProperties": False,
        }
    answer = client.post(CHAT, json=chat(response_format=json_format(schema), max_tokens=240))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"guided_choice": ["yes", "no"]}, "no"),
        ({"guided_regex": "[0-9]{3}-[a]"}, "000-a"),
        ({"regex": "ab?c/d"}, "abc/d"),
        ({"structured_outputs": {"choice": ["one"]}}, "one"),
        ({"structured_outputs": {"regex": "x{3}"}}, "xxx"),
        ({"structured_outputs": {"json": {"const": 7}}}, "7"),
        ({"structured_outputs": {"json": '{"const": 8}'}}, "8"),
        ({"guided_json": {"const": 9}}, "9"),
        ({"guided_grammar": 'start: "a" "b"'}, "ab"),
        ({"grammar": 'root ::= "c" "d"'}, "cd"),
    ],
)
def test_the_extensions_bind_chats_and_completions(
    rig: Rig, client: TestClient, fields: dict[str, Any], expected: str
) -> None:
    rig.reply("\x00")
    in_chat = client.post(CHAT, json=chat(**fields)).json()["choices"][0]
    in_completion = client.post("/v1/completions", json=completion(**fields)).json()["choices"][0]
    assert in_chat["message"]["content"] == expected
    assert in_completion["text"] == expected
    assert in_completion["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "("},
        {"guided_grammar": "start: nothing_known"},
        {"grammar": "root ::= missing"},
        {"guided_choice": []},
        {"guided_json": "{"},
        {"guided_json": {"const": 1}, "guided_regex": "a"},
        {"structured_outputs": {"json": {"const": 1}, "regex": "a"}},
    ],
)
def test_extensions_that_cannot_be_honoured_are_refused(client: TestClient, fields: dict[str, Any]) -> None:
    assert client.post(CHAT, json=chat(**fields)).status_code == 400
    assert client.post("/v1/completions", json=completion(**fields)).status_code == 400


@pytest.mark.parametrize("kind", ["xml", "", "json"])
def test_an_unknown_response_format_is_refused(client: TestClient, kind: str) -> None:
    response = client.post(CHAT, json=chat(response_format={"type": kind}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format.type"


def test_choices_follow_their_grammar_each_on_its_own(client: TestClient) -> None:
    answer = client.post(CHAT, json=chat(n=3, response_format=forced("abc"))).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [json.loads(text) for text in texts] == [{"v": "abc"}] * 3


def test_logprobs_come_for_every_token_of_a_bound_answer(client: TestClient) -> None:
    answer = client.post(CHAT, json=chat(response_format=forced("abc"), logprobs=True, top_logprobs=2)).json()
    choice = answer["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == choice["message"]["content"]
