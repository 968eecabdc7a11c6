"""What one request alone does not show: streams, choices and neighbours, in the words of public faults."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.engine.batch import FailureKind, StepFailure
from cases.requests import CHAT, EMBED, OLLAMA_CHAT, RESPONSES, TEXT
from server.rig import CONTEXT, EOS, MODEL_ID, Rig, byte_ids, chat, chat_text, completion, sse_events

Client = TestClient[ASGIApp]
EMOJI = ("🌶️你好ďábel🤣", "x🏳️‍🌈 👩🏽‍💻 e\u0301x ❤️", "\u202eabc\u200b", "𝔘𝔫𝔦")


def forced(text: str, **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"v": {"const": text}}, "required": ["v"]}
    wanted = {"name": "f", "strict": True, "schema": schema | {"additionalProperties": False}}
    return chat(response_format={"type": "json_schema", "json_schema": wanted}, **fields)


def streamed(client: Client, body: dict[str, Any]) -> list[Any]:
    answer = client.post(CHAT, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    return sse_events(answer.content)


@pytest.mark.parametrize("text", EMOJI)
def test_utf8_characters_are_never_cut_alone_or_in_company(client: Client, text: str) -> None:
    texts: list[str] = []

    def run() -> None:
        events = streamed(client, forced(text))
        assert not any("\ufffd" in json.dumps(event, ensure_ascii=False) for event in events)
        texts.append(json.loads(chat_text(events))["v"])

    run()
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [text] * 5


@pytest.mark.parametrize("is_streamed", [False, True])
def test_bytes_that_are_no_character_end_in_a_replacement(
    rig: Rig, client: Client, is_streamed: bool
) -> None:
    rig.runner.replies = byte_ids(b"\xf0\x41\xf0")
    fields: dict[str, Any] = {"max_tokens": 3, "logprobs": True}
    if is_streamed:
        events = streamed(client, chat(**fields))
        entries = [
            e for event in events for c in event["choices"] if c["logprobs"] for e in c["logprobs"]["content"]
        ]
        text = chat_text(events)
    else:
        choice = client.post(CHAT, json=chat(**fields)).json()["choices"][0]
        entries, text = choice["logprobs"]["content"], choice["message"]["content"]
    assert text == "\ufffdA\ufffd"
    assert [entry["bytes"] for entry in entries] == [[0xF0], [0x41], [0xF0]]


def test_a_prompt_that_ends_within_a_character_is_not_told_again(client: Client) -> None:
    prompt = [*byte_ids(b"Hello world "), *byte_ids("🌶".encode()[:2])]
    whole = client.post(TEXT, json=completion(prompt=prompt, max_tokens=4)).json()["choices"][0]["text"]
    answer = client.post(TEXT, json=completion(prompt=prompt, max_tokens=4, stream=True))
    assert "".join(e["choices"][0]["text"] for e in sse_events(answer.content)) == whole
    assert "Hello" not in whole


@pytest.mark.parametrize("stop", [["own fox"], ["own fox", "zzz"], ["fox", "own fox"]])
def test_a_stop_string_of_several_tokens_never_leaks(rig: Rig, client: Client, stop: list[str]) -> None:
    rig.reply("The quick brown fox jumps")
    assert chat_text(streamed(client, chat(stop=stop))) == "The quick br"
    whole = client.post(CHAT, json=chat(stop=stop)).json()["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == ("The quick br", "stop")


def test_an_answer_that_ends_at_once_is_whole(rig: Rig, client: Client) -> None:
    rig.runner.replies = [EOS]
    events = streamed(client, chat())
    reasons = [c["finish_reason"] for event in events for c in event["choices"]]
    assert (events[0]["choices"][0]["delta"]["role"], reasons[-1]) == ("assistant", "stop")
    for path, base in ((RESPONSES, {"input": "a"}), (OLLAMA_CHAT, chat(stream=False)), (TEXT, completion())):
        assert client.post(path, json={"model": MODEL_ID, **base}).status_code == 200


def test_a_context_that_fills_up_ends_the_answer(rig: Rig, client: Client) -> None:
    rig.reply("hello ", ends=False)
    body = client.post(
        TEXT, json=completion(prompt=[5] * (CONTEXT - 20), max_tokens=10**6, ignore_eos=True)
    ).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == CONTEXT


@pytest.mark.parametrize("n", [2, 4, 8])
def test_every_choice_arrives(rig: Rig, client: Client, n: int) -> None:
    for is_streamed in (False, True):
        fields = chat(n=n, temperature=1, seed=3)
        choices = (
            [c for event in streamed(client, fields) for c in event["choices"] if c["finish_reason"]]
            if is_streamed
            else client.post(CHAT, json=fields).json()["choices"]
        )
        assert sorted(choice["index"] for choice in choices) == list(range(n))


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES, EMBED, OLLAMA_CHAT])
def test_values_that_are_not_finite_are_an_error_and_harm_nobody(rig: Rig, client: Client, path: str) -> None:
    failure = StepFailure(kind=FailureKind.NOT_FINITE, message="values that are not finite")
    rig.runner.fail = lambda _: failure
    body = {**chat(), "input": "a", "stream": False}
    if path == TEXT:
        body["prompt"] = "a"
    answer = client.post(path, json=body)
    assert answer.status_code == 500
    rig.runner.fail = lambda _: None
    assert client.post(path, json=body).status_code == 200


def test_sampling_of_one_request_does_not_show_in_the_next(client: Client) -> None:
    plain = completion(prompt=[7] * 33, max_tokens=1, logprobs=5)
    first = client.post(TEXT, json=plain).json()["choices"]
    for fields in (
        {"logit_bias": {"9": 100}},
        {"repetition_penalty": 2},
        {"stop": "h"},
        {"guided_regex": "a+"},
    ):
        assert client.post(TEXT, json={**plain, **fields}).status_code == 200
        assert client.post(TEXT, json=plain).json()["choices"] == first


@pytest.fixture(autouse=True)
def _alive(rig: Rig, client: Client) -> Iterator[None]:
    yield
    rig.runner.fail = lambda _: None
    rig.reply("hello world")
    assert client.get("/health").status_code == 200
    assert client.post(CHAT, json=chat()).json()["choices"][0]["message"]["content"] == "hello world"
