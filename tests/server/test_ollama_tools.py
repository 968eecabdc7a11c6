"""Ollama's tools, formats, thoughts and suffixes: what binds the answer or tells its parts apart."""

from collections.abc import Iterator
from typing import Any

import pytest

from server.rig import MODEL_ID, TOKENIZER, Rig, make_rig, ndjson
from server.test_ollama_generate import MESSAGES, Client, chat, generate, prompt_ids


@pytest.fixture
def roomy() -> Iterator[tuple[Rig, Client]]:
    """Tools are told to the model in many tokens."""
    with make_rig(context_length=4096, num_blocks=512) as rig, rig.client() as client:
        yield rig, client


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"n": 9007199254740993}}\n</tool_call>'


def test_a_tool_call_has_its_arguments_as_an_object(roomy: tuple[Rig, Client]) -> None:
    rig, client = roomy
    rig.reply(CALL)
    whole = chat(client, tools=[TOOL])
    (call,) = whole.json()["message"]["tool_calls"]
    assert call["function"] == {"index": 0, "name": "weather", "arguments": {"n": 9007199254740993}}
    assert b"9007199254740993" in whole.content
    lines = ndjson(
        client.post("/api/chat", json={"model": MODEL_ID, "messages": MESSAGES, "tools": [TOOL]}).content
    )
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert [call["function"]["arguments"] for call in calls] == [{"n": 9007199254740993}]
    assert lines[-1]["done_reason"] == "stop"


def test_calls_and_results_come_back_in_the_history(roomy: tuple[Rig, Client]) -> None:
    rig, client = roomy
    history = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"n": 5}}}]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    assert chat(client, messages=history, tools=[TOOL]).status_code == 200
    text = TOKENIZER.decode(prompt_ids(rig))
    assert "sunny" in text
    assert '"n": 5' in text
    broken = [{"type": "function", "function": {"name": "bad name!"}}]
    refused = chat(client, tools=broken)
    assert refused.status_code == 400
    assert "tools[0]" in refused.json()["error"]


@pytest.mark.parametrize("wanted", ["json", {"type": "object", "properties": {"a": {"const": "hello"}}}])
def test_a_format_binds_the_text(rig: Rig, client: Client, wanted: Any) -> None:
    rig.reply('{"a": "hello"}')
    assert chat(client, format=wanted).json()["message"]["content"] == '{"a": "hello"}'
    assert generate(client, format=wanted).json()["response"] == '{"a": "hello"}'
    assert generate(client, format=wanted, raw=True).json()["response"] == '{"a": "hello"}'


@pytest.mark.parametrize("wanted", ["yaml", 5, [], {"type": "nope"}, {"type": "string", "pattern": "("}])
def test_a_format_that_cannot_be_honoured_is_refused(client: Client, wanted: Any) -> None:
    for answer in (chat(client, format=wanted), generate(client, format=wanted)):
        assert answer.status_code == 400
        assert "format" in answer.json()["error"]


THINKER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def test_thoughts_have_a_field_of_their_own() -> None:
    with make_rig(chat_template=THINKER) as rig, rig.client() as client:
        rig.reply("<think>\nhello\n</think>\n\nworld")
        message = chat(client, think=True).json()["message"]
        assert (message["thinking"], message["content"]) == ("hello", "world")
        body = generate(client, think="high").json()
        assert (body["thinking"], body["response"]) == ("hello", "world")
        lines = ndjson(client.post("/api/chat", json={"model": MODEL_ID, "messages": MESSAGES}).content)
        assert "".join(line["message"].get("thinking", "") for line in lines) == "hello"
        rig.reply("world")
        assert chat(client, think=False).json()["message"] == {"role": "assistant", "content": "world"}
        assert "<think>\n\n</think>" in TOKENIZER.decode(prompt_ids(rig))
        assert chat(client, think="much").status_code == 400


def test_a_model_that_does_not_think_says_so(client: Client) -> None:
    answer = chat(client, think=True)
    assert answer.status_code == 400
    assert "does not support thinking" in answer.json()["error"]
    assert chat(client, think=False).status_code == 200


def test_a_suffix_needs_a_model_that_fills_in(client: Client) -> None:
    answer = generate(client, suffix="return x")
    assert answer.status_code == 400
    assert "suffix" in answer.json()["error"]
    assert generate(client, suffix="").status_code == 200
