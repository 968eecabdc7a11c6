"""The anthropic client, unchanged, over a real socket."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from server.rig import MODEL_ID, Rig, make_rig, serve

MESSAGES: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "name": "add",
    "description": "Add",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 5}}\n</tool_call>'


@pytest.fixture
def tooled() -> Iterator[Rig]:
    with make_rig(context_length=4096, num_blocks=512) as rig:
        yield rig


@pytest.fixture
def api(tooled: Rig) -> Iterator[anthropic.Anthropic]:
    with (
        serve(tooled, api_key="secret") as server,
        anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as client,
    ):
        yield client


def test_a_message(api: anthropic.Anthropic) -> None:
    answer = api.messages.create(model=MODEL_ID, max_tokens=50, messages=MESSAGES, system="be kind")
    assert answer.content[0].text == "hello world"
    assert (answer.stop_reason, answer.role) == ("end_turn", "assistant")
    assert answer.usage.output_tokens > 0
    counted = api.messages.count_tokens(model=MODEL_ID, messages=MESSAGES, system="be kind")
    assert counted.input_tokens == answer.usage.input_tokens


def test_a_stream_is_put_together_again(api: anthropic.Anthropic) -> None:
    with api.messages.stream(model=MODEL_ID, max_tokens=50, messages=MESSAGES) as stream:
        assert "".join(stream.text_stream) == "hello world"
        final = stream.get_final_message()
    assert (final.stop_reason, final.content[0].text) == ("end_turn", "hello world")
    assert final.usage.output_tokens > 0


def test_a_tool_and_its_result(tooled: Rig, api: anthropic.Anthropic) -> None:
    tooled.reply(CALL)
    fields: Any = {"model": MODEL_ID, "max_tokens": 200, "tools": [TOOL], "tool_choice": {"type": "any"}}
    answer = api.messages.create(messages=MESSAGES, **fields)
    (call,) = answer.content
    assert (answer.stop_reason, call.name, call.input) == ("tool_use", "add", {"a": 5})
    with api.messages.stream(messages=MESSAGES, **fields) as stream:
        (streamed,) = stream.get_final_message().content
    assert (streamed.type, streamed.input) == ("tool_use", {"a": 5})
    tooled.reply("hello")
    history: Any = [
        *MESSAGES,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "6"}]},
    ]
    last = api.messages.create(model=MODEL_ID, max_tokens=50, messages=history, tools=[TOOL])
    assert last.content[0].text == "hello"


def test_models_are_listed_for_it_too(api: anthropic.Anthropic) -> None:
    assert [model.id for model in api.models.list()] == [MODEL_ID]


def test_errors_arrive_as_the_clients_own(tooled: Rig, api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="nope"):
        api.messages.create(model="nope", max_tokens=5, messages=MESSAGES)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        api.messages.create(model=MODEL_ID, max_tokens=5, messages=MESSAGES, extra_body={"temperature": 3})
    with pytest.raises(anthropic.AuthenticationError):
        api.with_options(api_key="wrong").messages.create(model=MODEL_ID, max_tokens=5, messages=MESSAGES)
    inner = tooled.runner._output

    def output(scheduled, digests):
        if scheduled.num_output_tokens >= 1:
            raise RuntimeError("the device is gone")
        return inner(scheduled, digests)

    tooled.runner._output = output
    with pytest.raises(anthropic.APIStatusError, match="the answer failed"):
        list(api.messages.create(model=MODEL_ID, max_tokens=50, messages=MESSAGES, stream=True))
