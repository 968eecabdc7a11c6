"""The clients that makers of APIs publish, unchanged, against the real server with the real model.

One question, greedy: whichever client asks, and however the answer comes, it is the same.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from product.conftest import DEFAULT_MODEL, RunningServer
from server.javascript import needs_node, run_script

pytestmark = [pytest.mark.product, pytest.mark.slow]
QUESTION = "Tell me a long story about a ship and its captain."
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def api(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def expected(api: openai.OpenAI) -> str:
    answer = api.chat.completions.create(model=DEFAULT_MODEL, messages=MESSAGES, temperature=0, max_tokens=24)
    text = answer.choices[0].message.content
    assert text is not None
    assert len(text) > 20
    return text


def test_openai_streams_the_same_answer(api: openai.OpenAI, expected: str) -> None:
    stream = api.chat.completions.create(
        model=DEFAULT_MODEL,
        messages=MESSAGES,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert last.usage is not None
    assert last.usage.completion_tokens == 24
    response = api.responses.create(model=DEFAULT_MODEL, input=QUESTION, temperature=0, max_output_tokens=24)
    assert response.output_text == expected


def test_openai_gets_what_its_schema_and_tools_ask_for(api: openai.OpenAI) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}
    answer = api.chat.completions.create(
        model=DEFAULT_MODEL, messages=MESSAGES, temperature=0, response_format=wanted
    )
    person = json.loads(answer.choices[0].message.content or "")
    assert set(person) == {"name", "age"}
    tool: Any = {"type": "function", "function": {"name": "add_person", "parameters": PERSON}}
    answer = api.chat.completions.create(
        model=DEFAULT_MODEL,
        messages=MESSAGES,
        temperature=0,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,  # so small a model does not stop by itself
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "add_person"
    assert set(json.loads(call.function.arguments)) == {"name", "age"}
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.fixture
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def test_anthropic_is_given_the_same_answer(claude: anthropic.Anthropic, expected: str) -> None:
    wanted: Any = {
        "model": DEFAULT_MODEL,
        "messages": MESSAGES,
        "max_tokens": 24,
        "extra_body": {"temperature": 0},  # which this client no longer has a parameter for
    }
    message = claude.messages.create(**wanted)
    assert "".join(block.text for block in message.content if block.type == "text") == expected
    assert message.stop_reason == "max_tokens"
    with claude.messages.stream(**wanted) as stream:
        assert "".join(stream.text_stream) == expected
    counted = claude.messages.count_tokens(model=DEFAULT_MODEL, messages=MESSAGES)
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_ollama_is_given_the_same_answer(server: RunningServer, expected: str) -> None:
    options = {"temperature": 0, "num_predict": 24, "repeat_penalty": 1.0}
    with ollama.Client(host=server.url) as client:
        answer = client.chat(model=DEFAULT_MODEL, messages=MESSAGES, options=options)
        assert answer.message.content == expected
        assert answer.done_reason == "length"
        parts = client.chat(model=DEFAULT_MODEL, messages=MESSAGES, options=options, stream=True)
        assert "".join(part.message.content or "" for part in parts) == expected
        shaped = client.chat(
            model=DEFAULT_MODEL, messages=MESSAGES, options={"temperature": 0}, format=PERSON
        )
        assert set(json.loads(shaped.message.content or "")) == {"name", "age"}


@needs_node
def test_openai_for_javascript_is_given_the_same_answer(server: RunningServer, expected: str) -> None:
    script = Path(__file__).with_name("answers.mjs")
    found = json.loads(run_script(script, server.url, DEFAULT_MODEL, QUESTION))
    assert found["whole"] == found["streamed"] == found["response"] == expected
    assert found["call"]["name"] == "look_up"
    assert set(json.loads(found["call"]["arguments"])) == {"town"}
