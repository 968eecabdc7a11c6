"""Text completions: prompt forms, choices, log-probabilities, defaults."""

from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from litestar.testing import TestClient

from appliance.engine.batch import TokenLogprobs
from appliance.engine.sequence import FinishReason
from appliance.formats.gguf import read_gguf
from appliance.server.openai_best_of import BestOf
from appliance.server.text_events import FinishedText, TextEnd, TokenDetail
from appliance.text.gguf_tokenizer import tokenizer_from_gguf
from appliance.text.infill import infill_token_ids
from formats.gguf_builder import tiny_vocabulary, write_gguf
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


def test_echo_puts_the_prompt_before_each_choice_once(client: TestClient) -> None:
    body = completion(prompt=["the", [3 + ord("h")]], echo=True, n=2)
    whole = client.post(URL, json=body).json()
    assert [choice["text"] for choice in whole["choices"]] == ["thehello world"] * 2 + ["hhello world"] * 2
    events = sse_events(client.post(URL, json={**body, "stream": True}).content)
    texts = ["", "", "", ""]
    for event in events:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]


def test_a_stop_string_in_an_echoed_prompt_ends_nothing(client: TestClient) -> None:
    answer = client.post(URL, json=completion(prompt="the world", echo=True, stop=["world"])).json()
    assert answer["choices"][0]["text"] == "the worldhello "


@pytest.mark.parametrize("is_streamed", [False, True])
def test_echo_with_logprobs_scores_the_prompt_too(rig: Rig, client: TestClient, is_streamed: bool) -> None:
    """lim-01, lp-04: with no tokens to make, and with two."""
    rig.runner.replies = byte_ids(b"he")
    for max_tokens, texts in ((0, ["the wörld", "x"]), (2, ["the wörldhe", "xhe"])):
        fields = {"echo": True, "logprobs": 2, "max_tokens": max_tokens, "stream": is_streamed}
        body = completion(prompt=["the wörld", [3 + ord("x")]], n=2, **fields)
        choices = choices_of(client.post(URL, json=body), is_streamed=is_streamed, number=4)
        for index, choice in enumerate(choices):
            text, scores = texts[index // 2], choice["logprobs"]
            assert (choice["text"], choice["finish_reason"]) == (text, "length")
            assert {len(column) for column in scores.values()} == {len(scores["tokens"])}
            num_prompt = len(scores["tokens"]) - max_tokens
            assert scores["token_logprobs"][:num_prompt] == [None, *(-float(n) for n in range(1, num_prompt))]
            assert scores["top_logprobs"][0] is None
            assert scores["text_offset"] == sorted(scores["text_offset"])
            assert scores["text_offset"][0] == 0
            for offset, token in zip(scores["text_offset"], scores["tokens"], strict=True):
                assert token == "\ufffd" or text.startswith(token, offset)


def choices_of(answer: Response, *, is_streamed: bool, number: int) -> list[dict[str, Any]]:
    """The choices of an answer, put together where they came in chunks."""
    assert answer.status_code == 200, answer.text
    if not is_streamed:
        assert answer.json()["usage"]["completion_tokens"] in (0, 2 * number)
        found: list[dict[str, Any]] = answer.json()["choices"]
        return found
    columns = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    made = [{"text": "", "finish_reason": None, "logprobs": {c: [] for c in columns}} for _ in range(number)]
    for event in sse_events(answer.content):
        for choice in event["choices"]:
            of_choice = made[choice["index"]]
            of_choice["text"] += choice["text"]
            of_choice["finish_reason"] = choice["finish_reason"] or of_choice["finish_reason"]
            for column in columns:
                of_choice["logprobs"][column] += (choice["logprobs"] or {}).get(column) or []
    return made


def test_echo_of_nothing_more_is_the_prompt(client: TestClient) -> None:
    body = completion(echo=True, max_tokens=0)
    answer = client.post(URL, json=body).json()
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("the world", 0)
    assert client.post(URL, json={**body, "echo": False}).status_code == 400


def test_scores_of_a_prompt_with_a_suffix_are_refused_by_name(client: TestClient) -> None:
    response = client.post(URL, json=completion(echo=True, logprobs=1, suffix="x"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logprobs"


def test_the_best_of_several_are_sent_and_all_are_counted(rig: Rig, client: TestClient) -> None:
    answer = client.post(URL, json=completion(prompt=["a", "b"], n=2, best_of=5)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    one = client.post(URL, json=completion(prompt="a")).json()["usage"]["completion_tokens"]
    assert answer["usage"]["completion_tokens"] == 10 * one


def test_of_two_answers_the_likelier_one_per_token_comes_first() -> None:
    def choice(index: int, *logprobs: float) -> FinishedText:
        details = tuple(
            TokenDetail(token_id=1, offset=0, logprobs=TokenLogprobs(logprob=value, top=()))
            for value in logprobs
        )
        end = TextEnd(
            index=index,
            reason=FinishReason.STOP,
            num_prompt_tokens=1,
            num_output_tokens=len(logprobs),
            num_prefix_hit_tokens=0,
        )
        return FinishedText(text=str(index), thoughts="", calls=(), tokens=details, end=end)

    made = [
        choice(0, -1.0),
        choice(1, -0.5, -0.5, -0.5),
        choice(2),
        choice(3, -3.0),
        choice(4, -2.0),
        choice(5, -9.0),
    ]
    kept = BestOf(num_made=3, num_kept=2).chosen(made)
    assert [(c.text, c.end.index) for c in kept] == [("1", 0), ("0", 1), ("4", 2), ("3", 3)]


@pytest.mark.parametrize("fields", [{"best_of": 1, "n": 2}, {"best_of": 21}, {"best_of": 3, "stream": True}])
def test_a_best_of_that_cannot_be_is_refused(client: TestClient, fields: dict[str, Any]) -> None:
    response = client.post(URL, json=completion(**fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "best_of"


@pytest.mark.parametrize("suffix", ["", None])
def test_an_empty_suffix_asks_for_nothing(client: TestClient, suffix: str | None) -> None:
    assert client.post(URL, json=completion(suffix=suffix)).status_code == 200


def test_a_suffix_is_laid_out_by_the_models_own_tokens(tmp_path: Path) -> None:
    markers = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    vocabulary = tiny_vocabulary(control=("<|endoftext|>", "<|im_start|>", "<|im_end|>", *markers))
    path = write_gguf(tmp_path / "fim.gguf", vocabulary, {})
    with read_gguf(path) as file:
        tokenizer = tokenizer_from_gguf(file)
    ids = infill_token_ids(tokenizer, "def f(", "<fim_middle>")
    assert ids is not None
    control = [tokenizer.control_ids[marker] for marker in markers]
    assert [token_id for token_id in ids if token_id in control] == control
    assert ids[-1] == control[-1]
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"def f(<fim_middle>"
    assert infill_token_ids(TOKENIZER, "a", "b") is None
