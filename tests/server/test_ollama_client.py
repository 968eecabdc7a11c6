"""The ollama client, unchanged, over a real socket."""

from collections.abc import Iterator

import ollama
import pytest

from server.rig import MODEL_ID, Rig, make_rig, serve

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def tooled() -> Iterator[Rig]:
    with make_rig(context_length=4096, num_blocks=512) as rig:
        yield rig


@pytest.fixture
def api(tooled: Rig) -> Iterator[ollama.Client]:
    with serve(tooled) as server:
        client = ollama.Client(host=server.url)
        yield client
        client._client.close()


def test_chat_and_generate_whole_and_streamed(api: ollama.Client) -> None:
    answer = api.chat(model=MODEL_ID, messages=MESSAGES)
    assert (answer.message.content, answer.done_reason) == ("hello world", "stop")
    assert answer.total_duration >= answer.eval_duration > 0
    chunks = list(api.chat(model=MODEL_ID, messages=MESSAGES, stream=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == "hello world"
    assert chunks[-1].eval_count > 0
    first = api.generate(model=MODEL_ID, prompt="hi", options={"temperature": 0, "num_predict": 50})
    assert first.response == "hello world"
    again = api.generate(model=MODEL_ID, prompt="more", context=first.context)
    assert list(again.context)[: len(first.context)] == list(first.context)
    assert "".join(part.response for part in api.generate(MODEL_ID, "hi", stream=True)) == "hello world"


def test_a_python_function_as_a_tool(tooled: Rig, api: ollama.Client) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    tooled.reply('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>')
    answer = api.chat(model=MODEL_ID, messages=MESSAGES, tools=[add])
    (call,) = answer.message.tool_calls
    assert add(**call.function.arguments) == 3
    tooled.reply("hello")
    history = [*MESSAGES, answer.message, {"role": "tool", "tool_name": "add", "content": "3"}]
    assert api.chat(model=MODEL_ID, messages=history, tools=[add]).message.content == "hello"


def test_a_schema_as_the_format(tooled: Rig, api: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"const": "hello"}}, "required": ["a"]}
    tooled.reply('{"a": "hello"}')
    assert api.chat(model=MODEL_ID, messages=MESSAGES, format=schema).message.content == '{"a": "hello"}'


def test_models(api: ollama.Client) -> None:
    assert [model.model for model in api.list().models] == [MODEL_ID]
    assert [model.model for model in api.ps().models] == [MODEL_ID]
    shown = api.show(MODEL_ID)
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion"]
    assert api.copy(MODEL_ID, "twin").status == "success"
    assert api.create(model="kind", from_=MODEL_ID, system="be kind").status == "success"
    assert {model.model for model in api.list().models} == {MODEL_ID, "twin", "kind"}
    assert api.chat(model="kind", messages=MESSAGES).message.content == "hello world"
    assert api.delete("twin").status == "success"
    with pytest.raises(ollama.ResponseError, match="not found") as missing:
        api.show("twin")
    assert missing.value.status_code == 404


def test_loading_and_unloading(api: ollama.Client) -> None:
    assert api.generate(model=MODEL_ID).done_reason == "load"
    assert api.generate(model=MODEL_ID, keep_alive=0).done_reason == "unload"
    assert list(api.ps().models) == []
    assert api.chat(model=MODEL_ID, messages=MESSAGES).message.content == "hello world"


def test_errors_arrive_as_the_clients_own(tooled: Rig, api: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="try pulling it first") as missing:
        api.chat(model="nope", messages=MESSAGES)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="nope"):
        list(api.pull("nope", stream=True))
    with pytest.raises(ollama.ResponseError, match=r"options\.temperature"):
        api.chat(model=MODEL_ID, messages=MESSAGES, options={"temperature": -1})
    inner = tooled.runner._output

    def output(scheduled, digests):
        if scheduled.num_output_tokens >= 1:
            raise RuntimeError("the device is gone")
        return inner(scheduled, digests)

    tooled.runner._output = output
    with pytest.raises(ollama.ResponseError, match="the answer failed"):
        list(api.chat(model=MODEL_ID, messages=MESSAGES, stream=True))
