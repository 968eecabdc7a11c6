"""Anthropic's messages: every event in order, blocks, stop reasons, usage, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.server.appliance_state import ServerLimits
from server.rig import MODEL_ID, TOKENIZER, Rig, make_rig

Client = TestClient[ASGIApp]
PATH = "/v1/messages"
WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "the"}}\n</tool_call>'


@pytest.fixture
def roomy() -> Iterator[tuple[Rig, Client]]:
    """Tools are told to the model in many tokens."""
    with make_rig(context_length=4096, num_blocks=512) as rig, rig.client() as client:
        yield rig, client


def ask(client: Client, **fields: Any) -> Any:
    body = {
        "model": MODEL_ID,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "hi"}],
        **fields,
    }
    return client.post(PATH, json={key: value for key, value in body.items() if value is not ...})


def events(answer: Any) -> list[tuple[str, Any]]:
    """Name and data of each event; the two must agree."""
    found = []
    for part in answer.text.strip().split("\n\n"):
        name, data = part.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name.removeprefix("event: ") == body["type"]
        found.append((body["type"], body))
    return found


def prompt_text(rig: Rig) -> str:
    sequence = rig.runner.batches[-1].sequences[0]
    return TOKENIZER.decode(sequence.known_token_ids[: sequence.num_prompt_tokens])


def test_a_whole_message(client: Client) -> None:
    answer = ask(client)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", MODEL_ID)
    assert body["id"].startswith("msg_")
    assert body["content"] == [{"type": "text", "text": "hello world"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    usage = body["usage"]
    assert usage["input_tokens"] > 0
    assert usage["output_tokens"] == len(TOKENIZER.encode("hello world", parse_special=False)) + 1
    assert usage["cache_creation_input_tokens"] == 0


def test_every_event_of_a_stream_in_its_order(client: Client) -> None:
    answer = ask(client, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer)
    names = [name for name, _ in found]
    deltas = names.count("content_block_delta")
    assert names == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = found[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] > 0
    assert found[2][1]["content_block"] == {"type": "text", "text": ""}
    pieces = [data["delta"] for name, data in found if name == "content_block_delta"]
    assert {piece["type"] for piece in pieces} == {"text_delta"}
    assert "".join(piece["text"] for piece in pieces) == "hello world"
    assert found[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2][1]["usage"]["output_tokens"] > 0


def test_the_reasons_to_stop(rig: Rig, client: Client) -> None:
    stopped = ask(client, stop_sequences=["", "wor"]).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "wor")
    assert stopped["content"][0]["text"] == "hello "
    rig.reply("hello hello hello", ends=False)
    cut = ask(client, max_tokens=2).json()
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 2)
    full = ask(client, max_tokens=10_000).json()
    assert full["stop_reason"] == "model_context_window_exceeded"


def test_an_empty_answer_still_has_a_block(rig: Rig, client: Client) -> None:
    rig.reply("")
    assert ask(client).json()["content"] == [{"type": "text", "text": ""}]
    names = [name for name, _ in events(ask(client, stream=True))]
    assert names[2:4] == ["content_block_start", "content_block_stop"]


def test_cached_tokens_are_told_apart(rig: Rig, client: Client) -> None:
    messages = [{"role": "user", "content": "x" * 100}]
    first = ask(client, messages=messages).json()["usage"]
    rig.wait_idle()
    second = ask(client, messages=messages).json()["usage"]
    assert first["cache_read_input_tokens"] == 0
    assert second["cache_read_input_tokens"] > 0
    total = second["cache_read_input_tokens"] + second["input_tokens"]
    assert total == first["input_tokens"]
    other = ask(client, messages=messages, metadata={"user_id": "someone"}).json()["usage"]
    assert other["cache_read_input_tokens"] == 0


@pytest.mark.parametrize(
    "system", ["be kind", [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]]
)
def test_a_system_prompt_is_a_text_or_blocks(rig: Rig, client: Client, system: Any) -> None:
    assert ask(client, system=system).status_code == 200
    assert prompt_text(rig) == "system\nbe kind\nuser\nhi\nassistant\n"


def test_blocks_of_text_are_joined_and_cache_marks_pass(rig: Rig, client: Client) -> None:
    blocks = [
        {"type": "text", "text": "tell me a ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "riddle"},
    ]
    ask(client, messages=[{"role": "user", "content": blocks}])
    assert "user\ntell me a riddle\n" in prompt_text(rig)


def test_the_answer_goes_on_from_a_prefill(rig: Rig, client: Client) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I say "}]
    body = ask(client, messages=messages).json()
    assert prompt_text(rig) == "user\nhi\nassistant\nI say "
    assert body["content"][0]["text"] == "hello world"


def test_a_tool_is_called(roomy: tuple[Rig, Client]) -> None:
    rig, client = roomy
    rig.reply(CALL)
    body = ask(client, tools=[WEATHER], tool_choice={"type": "any"}).json()
    assert body["stop_reason"] == "tool_use"
    (block,) = body["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {"city": "the"})
    assert block["id"]


def test_a_call_is_streamed_in_pieces_of_json(roomy: tuple[Rig, Client]) -> None:
    rig, client = roomy
    rig.reply(CALL)
    found = events(ask(client, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}, stream=True))
    starts = [data["content_block"] for name, data in found if name == "content_block_start"]
    assert [(block["type"], block["name"], block["input"]) for block in starts] == [
        ("tool_use", "weather", {})
    ]
    pieces = [data["delta"] for name, data in found if name == "content_block_delta"]
    assert json.loads("".join(piece["partial_json"] for piece in pieces)) == {"city": "the"}
    assert found[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_a_call_cut_by_the_limit_is_no_tool_use(roomy: tuple[Rig, Client]) -> None:
    rig, client = roomy
    rig.reply(CALL, ends=False)
    body = ask(client, tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=50).json()
    assert body["stop_reason"] == "max_tokens"
    assert not [block for block in body["content"] if block["type"] == "tool_use"]


HISTORY = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"n": 9007199254740993}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "text", "text": "and?"},
        ],
    },
]


def test_results_of_tools_come_back_in_the_history(roomy: tuple[Rig, Client]) -> None:
    rig, client = roomy
    assert ask(client, messages=HISTORY, tools=[WEATHER]).status_code == 200
    text = prompt_text(rig)
    assert "sunny" in text
    assert "9007199254740993" in text
    assert text.index("sunny") < text.index("and?")
    failed = json.loads(json.dumps(HISTORY))
    failed[2]["content"][0] |= {"is_error": True, "content": "no such city"}
    assert ask(client, messages=failed).status_code == 200
    assert "Error: no such city" in prompt_text(rig)


def test_thoughts_are_blocks_of_their_own() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n"
        "{% endfor %}<|im_start|>assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    )
    with make_rig(chat_template=template) as rig, rig.client() as client:
        rig.reply("<think>\nhello\n</think>\n\nworld")
        thinking = {"type": "enabled", "budget_tokens": 50}
        body = ask(client, thinking=thinking).json()
        assert body["content"] == [
            {"type": "thinking", "thinking": "hello", "signature": ""},
            {"type": "text", "text": "world"},
        ]
        found = events(ask(client, thinking=thinking, stream=True))
        kinds = [data["delta"]["type"] for name, data in found if name == "content_block_delta"]
        assert list(dict.fromkeys(kinds)) == ["thinking_delta", "signature_delta", "text_delta"]
        starts = [data["content_block"]["type"] for name, data in found if name == "content_block_start"]
        assert starts == ["thinking", "text"]
        ask(client)
        assert "<think>\n\n</think>" in prompt_text(rig)


def test_tokens_are_counted_as_they_would_be_used(roomy: tuple[Rig, Client]) -> None:
    _, client = roomy
    fields = {"messages": HISTORY, "tools": [WEATHER], "system": "be kind"}
    counted = client.post(f"{PATH}/count_tokens", json={"model": MODEL_ID, **fields})
    assert counted.status_code == 200
    used = ask(client, **fields).json()["usage"]
    assert counted.json() == {"input_tokens": used["input_tokens"] + used["cache_read_input_tokens"]}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": ...}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "novelty"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            "tool_use_id",
        ),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "nope"}}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"stop_sequences": ["x"] * 99}, "stop_sequences"),
        ({"stop_sequences": [1]}, "stop_sequences"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nope"}}}}, "output_config"),
    ],
)
def test_what_cannot_be_honoured_is_named(client: Client, fields: Any, word: str) -> None:
    answer = ask(client, **fields)
    assert answer.status_code == 400
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert word in body["error"]["message"]


def test_errors_of_each_kind_have_anthropics_names(rig: Rig, client: Client) -> None:
    unknown = ask(client, model="claude-sonnet")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    long = ask(client, messages=[{"role": "user", "content": "x" * 999}])
    assert (long.status_code, long.json()["error"]["type"]) == (400, "invalid_request_error")
    rig.state.enter("loading")
    waiting = ask(client)
    assert (waiting.status_code, waiting.json()["error"]["type"]) == (503, "overloaded_error")
    rig.state.enter("ready")
    with rig.client(api_key="secret") as keyed:
        refused = keyed.post(PATH, json={})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
            named = {**headers, "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
            body = {"model": MODEL_ID, "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}
            assert keyed.post(PATH, json=body, headers=named).status_code == 200


def test_an_error_inside_a_stream_is_an_event(rig: Rig, client: Client) -> None:
    inner = rig.runner._output

    def output(scheduled: Any, digests: Any) -> Any:
        if scheduled.num_output_tokens >= 1:
            raise RuntimeError("the device is gone")
        return inner(scheduled, digests)

    rig.runner._output = output
    name, data = events(ask(client, stream=True))[-1]
    assert name == "error"
    assert data["error"]["type"] == "api_error"


def test_a_silent_stream_is_kept_open_by_pings() -> None:
    with make_rig(limits=ServerLimits(ping_interval_s=0.05), step_s=0.3) as rig, rig.client() as client:
        answer = ask(client, stream=True, max_tokens=2)
        assert answer.text.count("event: ping") > 1


def test_a_copied_name_answers_clients_that_know_only_their_own(client: Client) -> None:
    client.post("/api/copy", json={"source": MODEL_ID, "destination": "claude-sonnet"})
    body = ask(client, model="claude-sonnet").json()
    assert (body["model"], body["content"][0]["text"]) == ("claude-sonnet", "hello world")


def test_what_is_left_open_is_the_models_own(rig: Rig, client: Client) -> None:
    create = {"model": "cool", "from": MODEL_ID, "parameters": {"temperature": 0.2, "num_predict": 1}}
    client.post("/api/create", json=create)
    assert ask(client, model="cool").json()["content"][0]["text"] == "hello world"
    assert rig.runner.batches[-1].sequences[0].sampling.temperature == 0.2
    ask(client, model="cool", temperature=0.9, top_k=3, top_p=0)
    params = rig.runner.batches[-1].sequences[0].sampling
    assert (params.temperature, params.top_k, params.top_p) == (0.9, 1, 1.0)
    ask(client)
    assert rig.runner.batches[-1].sequences[0].sampling.temperature == 1.0
