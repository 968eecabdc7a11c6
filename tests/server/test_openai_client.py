"""The openai client, unchanged, over a real socket."""

from collections.abc import Iterator

import openai
import pydantic
import pytest

from appliance.server.http_server import HttpServer
from server.rig import MODEL_ID, Rig, make_rig, serve


@pytest.fixture
def api(rig: Rig) -> Iterator[openai.OpenAI]:
    with serve(rig, api_key="secret") as server, connected(server, "secret") as client:
        yield client


def connected(server: HttpServer, api_key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key, max_retries=0)


MESSAGES = [{"role": "user", "content": "hi"}]


def test_chat(api: openai.OpenAI) -> None:
    answer = api.chat.completions.create(model=MODEL_ID, messages=MESSAGES)
    assert answer.choices[0].message.content == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_chat_with_usage(api: openai.OpenAI) -> None:
    stream = api.chat.completions.create(
        model=MODEL_ID, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello world"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens > 0


def test_chat_logprobs(api: openai.OpenAI) -> None:
    answer = api.chat.completions.create(model=MODEL_ID, messages=MESSAGES, logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries) == b"hello world"


def test_completion_and_streamed_completion(api: openai.OpenAI) -> None:
    answer = api.completions.create(model=MODEL_ID, prompt="the", logprobs=1)
    assert answer.choices[0].text == "hello world"
    assert "".join(answer.choices[0].logprobs.tokens) == "hello world"
    chunks = api.completions.create(model=MODEL_ID, prompt=["a", "b"], stream=True)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "hello world", 1: "hello world"}


def test_models(api: openai.OpenAI) -> None:
    assert [model.id for model in api.models.list()] == [MODEL_ID]
    assert api.models.retrieve(MODEL_ID).id == MODEL_ID


def test_errors_arrive_as_the_clients_own(api: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        api.chat.completions.create(model="nope", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        api.chat.completions.create(model=MODEL_ID, messages=MESSAGES, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        api.chat.completions.create(model=MODEL_ID, messages=[{"role": "user", "content": "x" * 999}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        api.with_options(api_key="wrong").models.list()


def test_an_error_inside_a_stream_is_raised(rig: Rig, api: openai.OpenAI) -> None:
    inner = rig.runner._output

    def output(scheduled):
        if scheduled.num_output_tokens >= 2:
            raise RuntimeError("the device is gone")
        return inner(scheduled)

    rig.runner._output = output
    with pytest.raises(openai.APIError, match="the answer failed"):
        list(api.chat.completions.create(model=MODEL_ID, messages=MESSAGES, stream=True))


def test_not_ready_is_an_internal_server_error_of_503() -> None:
    with make_rig(is_ready=False) as rig, serve(rig) as server, connected(server, "any") as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model=MODEL_ID, messages=MESSAGES)
        assert caught.value.status_code == 503


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_tools_whole_and_streamed() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    with (
        make_rig(context_length=4096, num_blocks=512) as rig,
        serve(rig) as server,
        connected(server, "any") as client,
    ):
        rig.reply(call)
        asked = {"model": MODEL_ID, "messages": MESSAGES, "tools": [WEATHER], "tool_choice": "required"}
        answer = client.chat.completions.create(**asked)
        (whole,) = answer.choices[0].message.tool_calls
        assert (whole.function.name, whole.function.arguments) == ("weather", '{"city": "Paris"}')
        assert answer.choices[0].finish_reason == "tool_calls"
        with client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.message.tool_calls[0].function.arguments == '{"city": "Paris"}'
        assert final.finish_reason == "tool_calls"


def test_parsed_answers(rig: Rig, api: openai.OpenAI) -> None:
    class Weather(pydantic.BaseModel):
        city: str

    rig.reply('{"city": "Paris"}')
    answer = api.chat.completions.parse(model=MODEL_ID, messages=MESSAGES, response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Paris")
