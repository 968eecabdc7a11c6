"""Fields that are wrong, unsupported, unknown or harmless."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from server.rig import MODEL_ID, chat, completion, make_rig

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """One appliance for all: a refused request leaves nothing behind."""
    with make_rig() as rig:
        with rig.client() as made:
            yield made
        rig.wait_idle()


def error_of(client: TestClient, url: str, body: Any) -> dict[str, Any]:
    response = client.post(url, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


OUT_OF_RANGE = [
    ("temperature", -1),
    ("temperature", 2.01),
    ("temperature", "NaN"),
    ("temperature", True),
    ("top_p", 1.01),
    ("top_p", -0.1),
    ("min_p", 1.5),
    ("top_k", -2),
    ("top_k", 1.5),
    ("frequency_penalty", 2.5),
    ("presence_penalty", -2.5),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("repetition_penalty", 11),
    ("seed", 2**63),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("seed", 1.5),
    ("seed", "7"),
    ("n", 0),
    ("n", -1),
    ("n", 10**6),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 3.5),
    ("max_tokens", "12"),
    ("max_tokens", True),
    ("max_tokens", 1e30),
    ("min_tokens", -1),
    ("stop", [1]),
    ("stop", 5),
    ("stop", ["x"] * 33),
    ("stop", ["x" * 1025]),
    ("stream", "yes"),
    ("stream_options", 5),
    ("logit_bias", {"99999": 5}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"abc": 1}),
    ("logit_bias", {"": 1}),
    ("logit_bias", {"٣": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": -100.1}),
    ("logit_bias", {"5": None}),
    ("logit_bias", {"1" * 5000: 1}),
    ("model", 5),
]


@pytest.mark.parametrize("url", [CHAT, COMPLETION])
@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
def test_values_out_of_range_are_refused_by_name(
    client: TestClient, url: str, field: str, value: Any
) -> None:
    body = chat() if url == CHAT else completion()
    error = error_of(client, url, {**body, field: value})
    assert error["param"].split("[")[0] == field
    assert field in error["message"]


IN_RANGE = [
    ("temperature", 0),
    ("temperature", 2),
    ("top_p", 0),
    ("top_p", 1),
    ("top_k", 0),
    ("top_k", -1),
    ("top_k", 1),
    ("top_k", 10**9),
    ("top_k", 10**19),
    ("min_p", 0),
    ("min_p", 1),
    ("seed", 2**63 - 1),
    ("seed", -(2**63)),
    ("seed", -1),
    ("seed", 0),
    ("max_tokens", 2**63 - 1),
    ("max_tokens", 2**70),
    ("logit_bias", {}),
    ("logit_bias", {"5": 1, "6": -100, "7": 100}),
    ("logit_bias", None),
    ("stop", ["a", "b", "c", "d", "e"]),
]


@pytest.mark.parametrize("url", [CHAT, COMPLETION])
@pytest.mark.parametrize(("field", "value"), IN_RANGE)
def test_values_at_the_edge_are_taken(client: TestClient, url: str, field: str, value: Any) -> None:
    body = chat() if url == CHAT else completion()
    response = client.post(url, json={**body, field: value})
    assert response.status_code == 200, response.text


UNSUPPORTED = [
    (CHAT, "functions", [{"name": "f"}]),
    (CHAT, "function_call", {"name": "f"}),
    (CHAT, "modalities", ["text", "audio"]),
    (CHAT, "audio", {"voice": "x"}),
    (CHAT, "web_search_options", {}),
    (COMPLETION, "suffix", "return x"),
]


@pytest.mark.parametrize(("url", "field", "value"), UNSUPPORTED)
def test_what_cannot_be_done_is_refused_by_name(client: TestClient, url: str, field: str, value: Any) -> None:
    error = error_of(client, url, {**(chat() if url == CHAT else completion()), field: value})
    assert (error["code"], error["param"]) == ("unsupported_parameter", field)


def test_fields_that_ask_for_nothing_do_no_harm(client: TestClient) -> None:
    harmless: dict[str, Any] = {
        "tools": [], "tool_choice": "auto", "functions": None, "response_format": {"type": "text"},
        "modalities": ["text"], "audio": None, "web_search_options": None, "logprobs": False, "n": 1,
        "metadata": {"a": [1]}, "store": True, "user": "u", "service_tier": "auto",
        "parallel_tool_calls": True, "reasoning_effort": "low", "logit_bias": {},
    }  # fmt: skip
    assert client.post(CHAT, json=chat(**harmless)).status_code == 200
    body = completion(echo=False, suffix="", best_of=1, logprobs=None)
    assert client.post(COMPLETION, json=body).status_code == 200


def test_unknown_fields_are_ignored_and_logged_once(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        assert client.post(CHAT, json=chat(foo=1, bar={"a": 1})).status_code == 200
    lines = [record.message for record in caplog.records if "unknown field" in record.message]
    assert len(lines) == 2
    assert "foo" in lines[1]


MESSAGES: list[Any] = [
    [],
    None,
    5,
    [{}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"content": "x"}],
    [{"role": "wizard", "content": "x"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"text": "x"}]}],
    [{"role": "user", "content": [5]}],
    [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}],
    [{"role": "assistant", "content": None, "audio": {"id": "audio_1"}}],
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("messages", MESSAGES)
def test_messages_that_make_no_sense_are_refused_by_place(
    client: TestClient, messages: Any, stream: bool
) -> None:
    error = error_of(client, CHAT, {"messages": messages, "stream": stream})
    assert error["param"].startswith("messages")
    assert client.post(CHAT, json=chat()).status_code == 200


def test_fields_of_messages_that_are_null_are_absent(client: TestClient) -> None:
    said = {"role": "assistant", "content": "x", "function_call": None, "audio": None, "tool_calls": None}
    messages = [said, {"role": "user", "content": "y"}]
    assert client.post(CHAT, json={"messages": messages}).status_code == 200


def test_absent_messages_are_named(client: TestClient) -> None:
    assert error_of(client, CHAT, {"model": MODEL_ID})["param"] == "messages"


def test_developer_is_the_system(client: TestClient) -> None:
    counts = [
        client.post(CHAT, json={"messages": [{"role": role, "content": "x"}]}).json()["usage"][
            "prompt_tokens"
        ]
        for role in ("system", "developer")
    ]
    assert counts[0] == counts[1]


def test_the_refusal_of_a_template_reaches_the_client() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with make_rig(chat_template=template) as rig, rig.client() as client:
        error = error_of(client, CHAT, chat())
        assert "roles must alternate" in error["message"]
        assert error["param"] == "messages"


def test_a_model_without_a_template_has_no_chat() -> None:
    with make_rig(chat_template=None) as rig, rig.client() as client:
        assert "/v1/completions" in error_of(client, CHAT, chat())["message"]
        assert client.post(COMPLETION, json=completion()).status_code == 200


def test_template_arguments_reach_the_template() -> None:
    with make_rig(chat_template="{{ 'x' * count }}") as rig, rig.client() as client:
        body = client.post(CHAT, json=chat(chat_template_kwargs={"count": 7})).json()
        assert body["usage"]["prompt_tokens"] == 7
        deep: Any = 1
        for _ in range(100):
            deep = {"a": deep}
        error = error_of(client, CHAT, chat(chat_template_kwargs={"count": deep}))
        assert error["param"] == "chat_template_kwargs"


def test_top_logprobs_needs_logprobs(client: TestClient) -> None:
    assert error_of(client, CHAT, chat(top_logprobs=2))["param"] == "top_logprobs"
    assert error_of(client, CHAT, chat(logprobs=True, top_logprobs=21))["param"] == "top_logprobs"
    assert error_of(client, COMPLETION, completion(logprobs=-1))["param"] == "logprobs"


def test_min_tokens_above_max_tokens_is_refused(client: TestClient) -> None:
    assert error_of(client, CHAT, chat(min_tokens=5, max_tokens=4))["param"] == "min_tokens"
    assert error_of(client, COMPLETION, completion(min_tokens=17))["param"] == "min_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_longer_than_the_context_says_by_how_much(client: TestClient, stream: bool) -> None:
    messages = [{"role": "user", "content": "x" * 1000}]
    error = error_of(client, CHAT, {"messages": messages, "stream": stream})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "shorten the prompt by " in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["nope", "x" * 10_000])
def test_an_unknown_model_is_not_found(client: TestClient, name: str, stream: bool) -> None:
    for url, body in ((CHAT, chat()), (COMPLETION, completion())):
        response = client.post(url, json={**body, "model": name, "stream": stream})
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert MODEL_ID in error["message"]
        assert len(response.content) < 1000


def test_requests_before_ready_are_told_to_wait() -> None:
    with make_rig(is_ready=False) as rig, rig.client() as client:
        rig.state.enter("loading", "reading tensors", progress=0.25)
        response = client.post(CHAT, json=chat())
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert "loading" in json.loads(response.content)["error"]["message"]


def test_a_full_queue_answers_429_with_retry_after() -> None:
    with make_rig(max_sequences=1, queue_limit=0, step_s=0.02) as rig, rig.client() as client:
        rig.reply("a", ends=False)
        running = rig.engine.submit([70], _endless())
        response = client.post(CHAT, json=chat())
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
        running.cancel()
        rig.wait_idle()


def _endless() -> Any:
    from appliance.engine.sequence import SamplingParams

    return SamplingParams()
