"""OpenAI's responses: the openai client over a real socket, and the wire where a client would not look."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.engine.batch import FailureKind, StepFailure
from server.rig import MODEL_ID, TOKENIZER, Rig, make_rig, serve

Client = TestClient[ASGIApp]
THINKER = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<think></think>"
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Tells it",
    "parameters": {
        "type": "object",
        "properties": {"city": {"const": "Oslo"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture
def api(rig: Rig) -> Iterator[openai.OpenAI]:
    with serve(rig) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as api:
        yield api


def respond(client: Client, status: int = 200, **fields: Any) -> Any:
    answer = client.post("/v1/responses", json={"model": MODEL_ID, "input": "hi", **fields})
    assert answer.status_code == status, answer.text
    return answer.json()


def refusal(client: Client, **fields: Any) -> Any:
    return respond(client, 400, **fields)["error"]


def events_of(client: Client, **fields: Any) -> list[Any]:
    """The events of a stream: named as their data says, numbered without a gap."""
    answer = client.post("/v1/responses", json={"model": MODEL_ID, "input": "hi", "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def prompt_of(rig: Rig) -> str:
    sequence = rig.runner.batches[-1].sequences[0]
    return TOKENIZER.spelt(sequence.known_token_ids[: sequence.num_prompt_tokens])


def without_ids(items: list[Any]) -> list[Any]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def test_a_response_as_the_client_reads_it(api: openai.OpenAI) -> None:
    response = api.responses.create(model=MODEL_ID, input="hi", instructions="be brief", metadata={"a": "b"})
    assert response.output_text == "hello world"
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert response.output[0].type == "message"
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.instructions, response.metadata) == ("be brief", {"a": "b"})
    assert response.model_dump(warnings="error")


def test_a_stream_tells_each_part_in_order(api: openai.OpenAI) -> None:
    events = list(api.responses.create(model=MODEL_ID, input="hi", stream=True))
    kinds = [kind for kind, _ in itertools.groupby(event.type for event in events)]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "hello world"
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "hello world"
    assert last.response.usage is not None


def test_the_clients_own_accumulator_follows_the_stream(api: openai.OpenAI) -> None:
    with api.responses.stream(model=MODEL_ID, input="hi") as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == "hello world"


def test_a_conversation_goes_on_from_an_id(rig: Rig, api: openai.OpenAI) -> None:
    first = api.responses.create(model=MODEL_ID, input="one", instructions="only once")
    assert "only once" in prompt_of(rig)
    second = api.responses.create(model=MODEL_ID, input="two", previous_response_id=first.id)
    prompt = prompt_of(rig)
    assert prompt.index("one") < prompt.index("hello world") < prompt.index("two")
    assert "only once" not in prompt
    third = api.responses.create(model=MODEL_ID, input="three", previous_response_id=second.id)
    assert prompt_of(rig).count("hello world") == 2
    assert third.previous_response_id == second.id
    assert api.responses.retrieve(third.id).output_text == "hello world"
    (item,) = api.responses.input_items.list(third.id).data
    assert (item.type, item.content[0].text) == ("message", "three")
    api.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        api.responses.create(model=MODEL_ID, input="x", previous_response_id=first.id)
    assert gone.value.param == "previous_response_id"


def test_what_is_not_to_be_stored_is_not(client: Client) -> None:
    body = respond(client, store=False)
    assert body["store"] is False
    assert client.get(f"/v1/responses/{body['id']}").status_code == 404
    assert client.delete(f"/v1/responses/{body['id']}").status_code == 404
    assert client.get(f"/v1/responses/{body['id']}/input_items").status_code == 404


def test_streamed_responses_are_stored_as_they_ended(client: Client) -> None:
    last = events_of(client)[-1]["response"]
    assert client.get(f"/v1/responses/{last['id']}").json() == last


def test_a_stream_and_a_whole_answer_say_the_same(client: Client) -> None:
    whole = respond(client)
    streamed = events_of(client)[-1]["response"]
    assert without_ids(streamed["output"]) == without_ids(whole["output"])
    assert streamed.keys() == whole.keys()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_is_cut_is_incomplete(rig: Rig, client: Client, is_streamed: bool) -> None:
    rig.reply("hello " * 20)
    if is_streamed:
        last = events_of(client, max_output_tokens=3)[-1]
        assert last["type"] == "response.incomplete"
        body = last["response"]
    else:
        body = respond(client, max_output_tokens=3)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert body["usage"]["output_tokens"] == 3


def test_an_empty_answer_is_an_empty_message(rig: Rig, client: Client) -> None:
    rig.reply("")
    whole, streamed = respond(client), events_of(client)[-1]["response"]
    for body in (whole, streamed):
        assert [part["text"] for part in body["output"][0]["content"]] == [""]


@pytest.fixture
def roomy() -> Iterator[Rig]:
    """Tools are told in many tokens of a letter each."""
    with make_rig(context_length=2000) as rig:
        yield rig
        rig.wait_idle()


def test_calls_and_their_outputs(roomy: Rig) -> None:
    rig, client = roomy, roomy.client()
    rig.reply("x" * 200, ends=False)
    fields = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    whole = respond(client, **fields)
    (call,) = whole["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == (
        "function_call",
        "weather",
        {"city": "Oslo"},
    )
    events = events_of(client, **fields)
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call["arguments"]
    done = next(e for e in events if e["type"] == "response.function_call_arguments.done")
    assert done["arguments"] == call["arguments"]
    rig.reply("sunny")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12 degrees"}
    for given, previous in (
        ([output], whole["id"]),
        ([{"role": "user", "content": "hi"}, call, output], None),
    ):
        answer = respond(client, input=given, previous_response_id=previous, tools=[TOOL])
        assert answer["output"][0]["content"][0]["text"] == "sunny"
        prompt = prompt_of(rig)
        assert prompt.index("Oslo") < prompt.index("12 degrees")
    reference = {"type": "item_reference", "id": call["id"]}
    respond(client, input=[{"role": "user", "content": "hi"}, reference, output])
    assert prompt_of(rig).index("Oslo") < prompt_of(rig).index("12 degrees")


def test_a_call_that_is_cut_is_no_item(roomy: Rig) -> None:
    rig, client = roomy, roomy.client()
    rig.reply("x" * 200, ends=False)
    fields: dict[str, Any] = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}}
    fields["max_output_tokens"] = 30
    whole, events = respond(client, **fields), events_of(client, **fields)
    assert whole["status"] == "incomplete"
    assert events[-1]["type"] == "response.incomplete"
    for body in (whole, events[-1]["response"]):
        assert not [item for item in body["output"] if item["type"] == "function_call"]


def test_a_schema_binds_the_text(client: Client) -> None:
    schema = {"type": "object", "properties": {"v": {"const": "🌶️ ü"}}, "required": ["v"]}
    text_format = {"type": "json_schema", "name": "f", "schema": schema | {"additionalProperties": False}}
    body = respond(client, text={"format": {**text_format, "strict": True}})
    assert json.loads(body["output"][0]["content"][0]["text"]) == {"v": "🌶️ ü"}
    assert body["text"]["format"]["schema"] == text_format["schema"]


def test_thoughts_are_an_item_of_their_own() -> None:
    with make_rig(chat_template=THINKER) as rig, rig.client() as client:
        rig.reply("<think>so be it</think>hello")
        body, events = respond(client), events_of(client)
        assert [item["type"] for item in body["output"]] == ["reasoning", "message"]
        assert body["output"][0]["content"] == [{"type": "reasoning_text", "text": "so be it"}]
        assert without_ids(events[-1]["response"]["output"]) == without_ids(body["output"])
        deltas = [e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"]
        assert "".join(deltas) == "so be it"
        assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        respond(client, previous_response_id=body["id"])


def test_logprobs_come_where_they_are_included(client: Client) -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = respond(client, **fields)["output"][0]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    streamed = events_of(client, **fields)[-1]["response"]["output"][0]["content"][0]
    assert streamed == part
    assert respond(client)["output"][0]["content"][0]["logprobs"] == []


def test_a_failure_inside_a_stream_is_its_last_event(rig: Rig, client: Client) -> None:
    rig.reply("hello " * 50)

    failure = StepFailure(kind=FailureKind.RUNNER, message="a secret path")
    rig.runner.fail = lambda scheduled: failure if scheduled.num_output_tokens > 5 else None
    events = events_of(client)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "generation_failed"
    assert "secret" not in json.dumps(events)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "nope"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"$ref": "#"}}}}, "text.format.schema"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"input": "long " * 2000}, "input"),
    ],
)
def test_what_cannot_be_honoured_is_named(client: Client, fields: Any, param: str) -> None:
    assert refusal(client, **fields)["param"] == param
    assert refusal(client, stream=True, **fields)["param"] == param


def test_unknown_ids_are_404_in_openais_form(client: Client) -> None:
    for method in ("GET", "DELETE"):
        answer = client.request(method, "/v1/responses/resp_nope")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "response_not_found"
    item = [{"type": "item_reference", "id": "nope"}]
    assert respond(client, 404, input=item)["error"]["param"] == "input[0].id"
