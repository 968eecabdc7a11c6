"""Text completions: prompt forms, choices, log-probabilities, defaults."""

from typing import Any

import pytest
from litestar.testing import TestClient

from server.rig import TOKENIZER, Rig, byte_ids, completion, sse_events

URL = "/v1/completions"


def test_whole_answer_has_text_reason_and_usage(rig: Rig, client: TestClient) -> None:
    body = client.post(URL, json=completion()).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "hello world", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == len(TOKENIZER.encode("the world", parse_special=True))


def test_default_is_sixteen_tokens(rig: Rig, client: TestClient) -> None:
    rig.reply("a", ends=False)
    body = client.post(URL, json=completion()).json()
    assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (16, "length")


def test_stream_joins_to_the_whole_text(client: TestClient) -> None:
    events = sse_events(client.post(URL, json=completion(stream=True)).content)
    assert "".join(event["choices"][0]["text"] for event in events) == "hello world"
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]
    assert all("usage" not in event for event in events)


def test_usage_chunk_of_a_stream_has_no_choices(client: TestClient) -> None:
    body = completion(stream=True, stream_options={"include_usage": True})
    *chunks, last = sse_events(client.post(URL, json=body).content)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize(
    ("prompt", "num_tokens"),
    [
        ("a", 1),
        (["a"], 1),
        (["a", "bc"], 3),
        ([67, 68, 69], 3),
        ([[67, 68], [69]], 3),
        (["a", [67]], 2),
        ("<|im_start|>", 1),
    ],
)
def test_prompt_forms(client: TestClient, prompt: Any, num_tokens: int) -> None:
    body = client.post(URL, json=completion(prompt=prompt)).json()
    num_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert [choice["index"] for choice in body["choices"]] == list(range(num_prompts))
    assert {choice["text"] for choice in body["choices"]} == {"hello world"}
    assert body["usage"]["prompt_tokens"] == num_tokens


def test_choices_are_ordered_by_prompt_then_choice(rig: Rig, client: TestClient) -> None:
    rig.runner.replies = None
    single = [
        client.post(URL, json=completion(prompt=prompt, ignore_eos=True)).json()["choices"][0]["text"]
        for prompt in ("a", "b")
    ]
    body = client.post(URL, json=completion(prompt=["a", "b"], n=2, ignore_eos=True)).json()
    assert [choice["text"] for choice in body["choices"]] == [single[0]] * 2 + [single[1]] * 2
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["completion_tokens"] == 64
    assert body["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], ["a", ""], ["a", 1], [1.5], 5, {}, [-1], [10**9], [[70, 10**9]]]
)
def test_prompts_that_make_no_sense_are_refused_by_name(client: TestClient, prompt: Any) -> None:
    response = client.post(URL, json=completion(prompt=prompt))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prompt")


def test_logprobs_zero_gives_the_chosen_tokens_alone(rig: Rig, client: TestClient) -> None:
    rig.runner.replies = byte_ids(b"abc")
    body = client.post(URL, json=completion(prompt="hello", logprobs=0, max_tokens=3)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": None,
        "text_offset": [5, 6, 7],
    }


def test_logprobs_name_the_likeliest_tokens(rig: Rig, client: TestClient) -> None:
    rig.runner.replies = byte_ids(b"ab")
    body = client.post(URL, json=completion(prompt=byte_ids(b"xy"), logprobs=2, max_tokens=2)).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"a": -0.5, "b": -1.5}, {"b": -0.5, "c": -1.5}]
    assert logprobs["text_offset"] == [2, 3]


def test_prompt_that_fills_the_context_leaves_no_room(rig: Rig, client: TestClient) -> None:
    context = rig.model.facts.context_length
    for length, status in ((context - 1, 200), (context, 400), (context + 1, 400)):
        response = client.post(URL, json=completion(prompt=[70] * length, max_tokens=1))
        assert response.status_code == status, response.text
        if status == 400:
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
            assert f"shorten the prompt by {length + 1 - context} token" in error["message"]
    assert client.post(URL, json=completion()).status_code == 200


def test_too_many_choices_are_refused_before_any_is_made(rig: Rig, client: TestClient) -> None:
    limit = rig.state.limits.max_choices
    response = client.post(URL, json=completion(prompt=["a", "b"], n=limit // 2 + 1))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert rig.runner.num_steps == 0


def test_a_bad_second_prompt_ends_the_first(rig: Rig, client: TestClient) -> None:
    rig.runner.step_s = 0.01
    rig.reply("a", ends=False)
    response = client.post(URL, json=completion(prompt=[[70], [70] * 1000], max_tokens=200))
    assert response.status_code == 400
    rig.wait_idle(seconds=1)
