"""`appliance serve` as a user starts it, spoken to by the unchanged openai client."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import jsonschema
import openai
import pytest

from product.conftest import DEFAULT_MODEL, RunningServer, end_server, start_server

pytestmark = pytest.mark.product
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=DEFAULT_MODEL, messages=QUESTION, temperature=0)
    assert reply.choices[0].message.content == ANSWER
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (37, 8)


def test_a_stream_says_the_same_and_ends_with_usage(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=DEFAULT_MODEL,
            messages=QUESTION,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    assert len(chunks) > 5


def test_a_completion_stops_at_a_string_across_tokens(client: openai.OpenAI) -> None:
    prompt = "The capital of France is"
    whole = client.completions.create(model=DEFAULT_MODEL, prompt=prompt, temperature=0, max_tokens=12)
    cut = client.completions.create(
        model=DEFAULT_MODEL, prompt=prompt, temperature=0, max_tokens=12, stop=["\n\nThe ans"]
    )
    assert whole.choices[0].text.startswith(" Paris.\n\nThe answer is")
    assert cut.choices[0].text == " Paris."
    assert cut.choices[0].finish_reason == "stop"


def test_errors_come_as_the_client_expects(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nope", messages=QUESTION)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=DEFAULT_MODEL, prompt="one two " * 2000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model=DEFAULT_MODEL, messages=QUESTION, temperature=9)
    assert hot.value.param == "temperature"


def test_a_client_that_leaves_frees_its_sequence(server: RunningServer, client: openai.OpenAI) -> None:
    stream = client.completions.create(model=DEFAULT_MODEL, prompt="Count:", max_tokens=1500, stream=True)
    next(iter(stream))
    assert snapshot(server)["requests"]["running"] == 1
    stream.close()
    assert until(lambda: snapshot(server)["requests"]["running"] == 0)
    assert snapshot(server)["kv"]["used_blocks"] == 0


def test_health_answers_while_a_long_prompt_is_computed(server: RunningServer, client: openai.OpenAI) -> None:
    prompt = [1000 + i % 30000 for i in range(1900)]
    request = threading.Thread(
        target=lambda: client.completions.create(model=DEFAULT_MODEL, prompt=prompt, max_tokens=1)
    )
    request.start()
    num_answers = 0
    while request.is_alive():
        with urllib.request.urlopen(f"{server.url}/health", timeout=2) as reply:
            assert reply.status == 200
        num_answers += 1
        time.sleep(0.01)
    request.join()
    assert num_answers > 5


def test_snapshot_shows_what_happened(server: RunningServer, client: openai.OpenAI) -> None:
    before = snapshot(server)["throughput"]["output_tokens"]
    client.completions.create(model=DEFAULT_MODEL, prompt="Hello", max_tokens=5, temperature=0)
    # Snapshots are made anew a few times a second, however many ask.
    assert until(lambda: snapshot(server)["throughput"]["output_tokens"] == before + 5)
    after = snapshot(server)
    assert after["latency"]["ttft"]["count"] > 0
    assert after["model"]["id"] == DEFAULT_MODEL


def test_health_says_loading_then_a_signal_ends_it_in_order() -> None:
    running = start_server()
    try:
        with pytest.raises(urllib.error.HTTPError) as loading:
            urllib.request.urlopen(f"{running.url}/health", timeout=5)
        assert loading.value.code == 503
        assert json.loads(loading.value.read())["phase"] in ("starting", "loading", "warming")
        loading.value.close()
        running.wait_ready()
    finally:
        assert end_server(running) == 0


def test_a_taken_port_is_said_before_anything_is_loaded(server: RunningServer) -> None:
    port = server.url.rsplit(":", 1)[1]
    second = subprocess.run(
        [sys.executable, "-m", "appliance", "serve", "--port", port],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert second.returncode == 8
    assert f"appliance dashboard --url {server.url}" in second.stderr


def test_running_answers_finish_when_it_is_told_to_stop() -> None:
    running = start_server()
    running.wait_ready()
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0) as client:
        stream = client.completions.create(
            model=DEFAULT_MODEL, prompt="Hi", max_tokens=12, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = iter(stream)
        next(chunks)
        running.process.send_signal(signal.SIGINT)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == "length"
    assert running.process.wait(timeout=20) == 0
    assert running.process.stdout is not None
    running.process.stdout.close()


def snapshot(server: RunningServer) -> dict[str, dict[str, int]]:
    with urllib.request.urlopen(f"{server.url}/system/v1/snapshot", timeout=5) as reply:
        value: dict[str, dict[str, int]] = json.loads(reply.read())
    return value


def until(condition: object) -> bool:
    assert callable(condition)
    for _ in range(200):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_a_required_call_is_streamed_as_json_that_fits_its_schema(client: openai.OpenAI) -> None:
    city, days = {"type": "string", "maxLength": 12}, {"type": "integer", "minimum": 1, "maximum": 9}
    parameters = {
        "type": "object",
        "properties": {"city": city, "days": days},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    stream = client.chat.completions.create(
        model=DEFAULT_MODEL,
        messages=[{"role": "user", "content": "How is the weather in Rome?"}],
        tools=[{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}],
        tool_choice="required",
        parallel_tool_calls=False,
        stream=True,
        temperature=0,
        max_tokens=120,
    )
    choices = [choice for chunk in stream for choice in chunk.choices]
    deltas = [delta for choice in choices for delta in choice.delta.tool_calls or []]
    assert [(d.index, d.function.name) for d in deltas if d.function and d.id] == [(0, "get_weather")]
    arguments = "".join(d.function.arguments or "" for d in deltas if d.function)
    jsonschema.validate(json.loads(arguments), parameters)
    assert choices[-1].finish_reason == "tool_calls"
