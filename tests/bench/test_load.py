"""The load client against a real socket: what it asks, how many at once, how it reads what comes back."""

from itertools import count
from typing import Any

import pytest

from appliance.bench.load import run_load
from appliance.bench.session import ServerUnusable
from bench.openai_stand_in import event, refusal, serving, stream, tokens


def echo_tokens(body: dict[str, Any]) -> list[bytes]:
    return tokens(body["max_tokens"], num_prompt_tokens=len(body["prompt"]))


def words_only(body: dict[str, Any]) -> list[bytes]:
    if not isinstance(body["prompt"], str):
        return refusal(400, "prompt must be a string")
    return tokens(body["max_tokens"], num_prompt_tokens=3 * len(body["prompt"].split()))


def test_every_request_is_answered_and_counted() -> None:
    with serving(echo_tokens) as server:
        result = run_load(server.url, "m", concurrency=3, num_requests=7, prompt_tokens=13, output_tokens=5)
    assert result.errors == ()
    assert result.sends_token_ids
    assert len(result.timings) == 7
    assert [timing.num_output_tokens for timing in result.timings] == [5] * 7
    assert [len(timing.gaps_s) for timing in result.timings] == [4] * 7
    assert {timing.num_prompt_tokens for timing in result.timings} == {13}
    assert result.output_tokens_per_s == pytest.approx(35 / result.wall_s)


def test_no_more_requests_are_open_than_there_are_clients() -> None:
    with serving(echo_tokens) as server:
        run_load(server.url, "m", concurrency=3, num_requests=9, prompt_tokens=4, output_tokens=6)
    assert 2 <= server.most_open <= 3


def test_requests_ask_for_whole_greedy_answers_and_carry_the_key() -> None:
    with serving(echo_tokens) as server:
        run_load(
            server.url + "/v1",
            "some-model",
            concurrency=1,
            num_requests=2,
            prompt_tokens=9,
            output_tokens=3,
            api_key="secret",
        )
    for body in server.bodies:
        assert body["model"] == "some-model"
        assert body["ignore_eos"] is True
        assert body["stream"] is True
        assert body["temperature"] == 0
    assert [body["max_tokens"] for body in server.bodies] == [1, 3, 3]
    for head in server.heads:
        assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
        assert b"Authorization: Bearer secret\r\n" in head


def test_no_prompt_is_sent_twice() -> None:
    with serving(echo_tokens) as server:
        run_load(server.url, "m", concurrency=2, num_requests=20, prompt_tokens=8, output_tokens=1)
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert len(set(prompts)) == len(prompts) == 21


def test_server_that_takes_only_text_gets_words_of_about_the_asked_length() -> None:
    with serving(words_only) as server:
        result = run_load(server.url, "m", concurrency=1, num_requests=2, prompt_tokens=60, output_tokens=2)
    assert not result.sends_token_ids
    assert result.errors == ()
    assert [timing.num_prompt_tokens for timing in result.timings] == [60, 60]


def test_failed_requests_are_told_and_count_in_no_percentile() -> None:
    numbers = count()

    def every_third_fails(body: dict[str, Any]) -> list[bytes]:
        return refusal(429, "queue is full") if next(numbers) % 3 == 2 else echo_tokens(body)

    with serving(every_third_fails) as server:
        result = run_load(server.url, "m", concurrency=1, num_requests=6, prompt_tokens=4, output_tokens=4)
    assert len(result.errors) == 2
    assert all("429" in error and "queue is full" in error for error in result.errors)
    assert len(result.succeeded) == 4


def test_stream_that_breaks_off_is_an_error() -> None:
    numbers = count()

    def breaks_off(body: dict[str, Any]) -> list[bytes]:
        return echo_tokens(body)[: None if next(numbers) == 0 else 3]

    with serving(breaks_off) as server:
        result = run_load(server.url, "m", concurrency=1, num_requests=1, prompt_tokens=4, output_tokens=4)
    assert result.errors == ("the stream ended without [DONE]",)
    assert result.ttft is None
    assert result.max_gap_s is None


def test_error_inside_a_stream_is_told() -> None:
    numbers = count()

    def fails_midway(body: dict[str, Any]) -> list[bytes]:
        if next(numbers) == 0:
            return echo_tokens(body)
        return stream(event({"choices": [{"text": "a"}]}), event({"error": {"message": "lost"}}))

    with serving(fails_midway) as server:
        result = run_load(server.url, "m", concurrency=1, num_requests=1, prompt_tokens=4, output_tokens=4)
    assert len(result.errors) == 1
    assert "lost" in result.errors[0]


def test_server_that_answers_nothing_is_told_at_once() -> None:
    with (
        serving(lambda _body: refusal(404, "no such model")) as server,
        pytest.raises(ServerUnusable, match="no such model"),
    ):
        run_load(server.url, "m", concurrency=1, num_requests=1, prompt_tokens=4, output_tokens=4)


def test_nobody_listening_is_told_at_once() -> None:
    with serving(echo_tokens) as server:
        url = server.url
    with pytest.raises(ServerUnusable):
        run_load(url, "m", concurrency=1, num_requests=1, prompt_tokens=4, output_tokens=4)


def test_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a server's URL"):
        run_load("localhost:80", "m", concurrency=1, num_requests=1, prompt_tokens=4, output_tokens=4)
