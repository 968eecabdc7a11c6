"""Chat completions: their shapes, whole and streamed."""

import json
from typing import Any

import pytest
from litestar.testing import TestClient

from server.rig import EOS, MODEL_ID, TOKENIZER, Rig, byte_ids, chat, chat_text, make_rig, sse_events

URL = "/v1/chat/completions"


def test_whole_answer_has_text_reason_and_usage(rig: Rig, client: TestClient) -> None:
    response = client.post(URL, json=chat())
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL_ID
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello world", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == len(rig.runner.replies)
    prompt = rig.model.chat_template.encode(TOKENIZER, [{"role": "user", "content": "hi"}])
    assert usage["prompt_tokens"] == len(prompt)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_stream_has_one_role_null_reasons_and_one_end(client: TestClient) -> None:
    response = client.post(URL, json=chat(stream=True))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = sse_events(response.content)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all("role" not in delta for delta in deltas[1:])
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]
    assert chat_text(events) == "hello world"
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert all("usage" not in event for event in events)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": None}, {"include_usage": False}])
def test_usage_in_a_stream_comes_only_when_asked_for(client: TestClient, options: Any) -> None:
    events = sse_events(client.post(URL, json=chat(stream=True, stream_options=options)).content)
    assert all(event["choices"] and "usage" not in event for event in events)


@pytest.mark.parametrize("n", [1, 2])
def test_usage_chunk_is_last_with_no_choices(client: TestClient, n: int) -> None:
    body = chat(stream=True, n=n, stream_options={"include_usage": True})
    *chunks, last = sse_events(client.post(URL, json=body).content)
    assert last["choices"] == []
    whole = client.post(URL, json=chat(n=n)).json()["usage"]
    assert {k: last["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        k: whole[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    assert all(chunk["usage"] is None for chunk in chunks)


def test_stream_options_without_a_stream_have_no_effect(client: TestClient) -> None:
    assert client.post(URL, json=chat(stream_options={"include_usage": True})).status_code == 200


@pytest.mark.parametrize("text", ["🌶️你好ďábel🤣", "x🏳️‍🌈 👩🏽‍💻 e\u0301x ❤️"])
def test_characters_of_many_tokens_arrive_whole(rig: Rig, client: TestClient, text: str) -> None:
    rig.reply(text.encode())
    response = client.post(URL, json=chat(stream=True))
    events = sse_events(response.content)
    assert chat_text(events) == text
    assert "\ufffd" not in response.text


def test_text_cut_within_a_character_ends_in_one_replacement(rig: Rig, client: TestClient) -> None:
    rig.reply(b"a\xf0\x9f", ends=True)
    assert client.post(URL, json=chat()).json()["choices"][0]["message"]["content"] == "a\ufffd"
    assert chat_text(sse_events(client.post(URL, json=chat(stream=True)).content)) == "a\ufffd"


@pytest.mark.parametrize("stream", [False, True])
def test_first_token_that_ends_the_answer_gives_an_empty_text(
    rig: Rig, client: TestClient, stream: bool
) -> None:
    rig.reply("")
    response = client.post(URL, json=chat(stream=stream))
    if not stream:
        (choice,) = response.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
        return
    events = sse_events(response.content)
    assert [e["choices"][0]["delta"] for e in events] == [{"role": "assistant", "content": ""}, {}]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("own fox", "The quick br"),
        (["zzz", "own fox"], "The quick br"),
        ("T", ""),
        ("", "The quick brown fox"),
        ([""], "The quick brown fox"),
        ([], "The quick brown fox"),
        (None, "The quick brown fox"),
        ("fox!", "The quick brown fox"),
    ],
)
def test_stop_strings_end_the_text_just_before_them(
    rig: Rig, client: TestClient, stop: Any, expected: str, stream: bool
) -> None:
    rig.reply(b"The quick brown fox")
    response = client.post(URL, json=chat(stop=stop, stream=stream))
    if stream:
        events = sse_events(response.content)
        text, reason = chat_text(events), events[-1]["choices"][0]["finish_reason"]
    else:
        (choice,) = response.json()["choices"]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    assert (text, reason) == (expected, "stop")


def test_tokens_after_a_stop_string_are_not_counted(rig: Rig, client: TestClient) -> None:
    rig.reply(b"abcdefgh" * 20, ends=False)
    usage = client.post(URL, json=chat(stop="cd")).json()["usage"]
    assert usage["completion_tokens"] == 4
    rig.wait_idle()
    assert rig.engine.snapshot().num_aborted == 0


def test_max_tokens_ends_with_length(rig: Rig, client: TestClient) -> None:
    rig.reply("a", ends=False)
    for fields in (
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"max_tokens": 9, "max_completion_tokens": 5},
    ):
        body = client.post(URL, json=chat(**fields)).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["choices"][0]["message"]["content"] == "aaaaa"
        assert body["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    "fields", [{}, {"max_tokens": None}, {"max_tokens": 2**31}, {"max_tokens": 2**63 - 1}]
)
def test_without_a_limit_the_context_ends_the_text(rig: Rig, client: TestClient, fields: Any) -> None:
    rig.reply("a", ends=False)
    body = client.post(URL, json=chat(**fields)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == rig.model.facts.context_length


def test_choices_are_complete_and_in_order(rig: Rig, client: TestClient) -> None:
    rig.runner.replies = None
    body = client.post(URL, json=chat(n=8, max_tokens=7, ignore_eos=True)).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(8))
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    assert body["usage"]["completion_tokens"] == 56


def test_choices_of_a_stream_carry_their_index(client: TestClient) -> None:
    events = sse_events(client.post(URL, json=chat(n=3, stream=True)).content)
    assert [chat_text(events, index) for index in range(3)] == ["hello world"] * 3
    ends = [e["choices"][0] for e in events if e["choices"][0]["finish_reason"]]
    assert sorted(end["index"] for end in ends) == [0, 1, 2]


def test_logprobs_have_one_entry_per_token_and_their_bytes_join_to_the_text(
    rig: Rig, client: TestClient
) -> None:
    text = "a🌶b"
    rig.reply(text.encode())
    body = client.post(URL, json=chat(logprobs=True, top_logprobs=2)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [set(entry) for entry in content] == [{"token", "logprob", "bytes", "top_logprobs"}] * 6
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert bytes(byte for entry in content for byte in entry["bytes"]) == text.encode()
    events = sse_events(client.post(URL, json=chat(logprobs=True, top_logprobs=2, stream=True)).content)
    streamed = [
        entry for event in events for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


def test_logprobs_of_a_stop_string_go_with_it(rig: Rig, client: TestClient) -> None:
    rig.reply(b"abcdef")
    body = client.post(URL, json=chat(logprobs=True, stop="cd")).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "b"]
    assert all(entry["top_logprobs"] == [] for entry in content)


def test_minus_infinity_is_written_as_a_number(rig: Rig, client: TestClient) -> None:
    inner = rig.runner._logprobs
    rig.runner._logprobs = lambda token_id, params: type(inner(0, params))(
        logprob=float("-inf"), top=((token_id, float("-inf")),) * params.num_logprobs
    )
    response = client.post(URL, json=chat(logprobs=True, top_logprobs=1))
    entry = response.json()["choices"][0]["logprobs"]["content"][0]
    assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] == -9999.0
    assert "Infinity" not in response.text


def test_text_parts_join_without_a_separator(client: TestClient) -> None:
    parts = [{"type": "text", "text": "tell me a "}, {"type": "text", "text": "riddle"}]
    for role in ("user", "system", "assistant", "tool", "developer"):
        counts = {
            client.post(URL, json={"messages": [{"role": role, "content": content}]}).json()["usage"][
                "prompt_tokens"
            ]
            for content in (parts, "tell me a riddle")
        }
        assert len(counts) == 1, role


def test_assistant_content_null_absent_and_empty_are_the_same(client: TestClient) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"c":"X"}'}}
    counts = set()
    for content in ({"content": None}, {}, {"content": ""}):
        messages = [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "tool_calls": [call], **content},
            {"role": "tool", "tool_call_id": "c1", "content": "12"},
        ]
        response = client.post(URL, json={"messages": messages})
        assert response.status_code == 200, response.text
        counts.add(response.json()["usage"]["prompt_tokens"])
    assert len(counts) == 1


@pytest.mark.parametrize("arguments", ["{", "", "[]", "null", '{"a":' * 500 + "1" + "}" * 500])
def test_odd_tool_arguments_in_the_history_do_not_break_the_conversation(arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": arguments}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    with make_rig(context_length=4096, num_blocks=512) as rig, rig.client() as client:
        assert client.post(URL, json={"messages": messages}).status_code == 200


def test_user_text_cannot_make_control_tokens(client: TestClient) -> None:
    marked = client.post(URL, json={"messages": [{"role": "user", "content": "hi<|im_end|>"}]}).json()
    assert marked["usage"]["prompt_tokens"] > len("<|im_end|>") + 10


def test_empty_content_still_makes_a_prompt(client: TestClient) -> None:
    assert client.post(URL, json={"messages": [{"role": "user", "content": ""}]}).status_code == 200


def test_absent_model_means_the_resident_one(client: TestClient) -> None:
    body = chat()
    for name in (None, ""):
        response = client.post(URL, json={**body, "model": name})
        assert response.json()["model"] == MODEL_ID


def test_seeded_choices_are_repeatable_and_differ(rig: Rig, client: TestClient) -> None:
    seeds = []
    inner = rig.runner._choose

    def choose(digest: int, index: int, params: Any) -> int:
        seeds.append(params.seed)
        return inner(digest, index, params)

    rig.runner._choose = choose
    for _ in range(2):
        client.post(URL, json=chat(n=3, seed=-(2**63), max_tokens=1))
    first, second = sorted(seeds[:3]), sorted(seeds[3:])
    assert first == second
    assert len(set(first)) == 3
    assert -(2**63) in first


def test_sampling_fields_reach_the_engine(rig: Rig, client: TestClient) -> None:
    client.post(
        URL,
        json=chat(
            temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, repetition_penalty=1.2, presence_penalty=-1,
            frequency_penalty=2, seed=7, min_tokens=2, max_tokens=9,
        ),
    )  # fmt: skip
    params = next(s.sampling for batch in rig.runner.batches for s in batch.sequences if s.sampling)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 0, 0.1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.2, -1, 2)
    assert (params.seed, params.min_tokens, params.max_tokens) == (7, 2, 9)
    assert params.stop_token_ids == TOKENIZER.stop_token_ids


def test_top_p_zero_is_greedy(rig: Rig, client: TestClient) -> None:
    client.post(URL, json=chat(top_p=0))
    params = next(s.sampling for batch in rig.runner.batches for s in batch.sequences if s.sampling)
    assert params.is_greedy


def test_ignore_eos_goes_on_after_the_end_token(rig: Rig, client: TestClient) -> None:
    rig.runner.replies = [*byte_ids(b"a"), EOS, *byte_ids(b"b")]
    body = client.post(URL, json=chat(ignore_eos=True, max_tokens=4)).json()
    assert body["choices"][0]["message"]["content"] == "abb"


def test_every_stream_line_is_json(client: TestClient) -> None:
    text = client.post(URL, json=chat(stream=True)).content.decode()
    for line in filter(None, text.split("\n")):
        assert line == "data: [DONE]" or json.loads(line.removeprefix("data: "))
