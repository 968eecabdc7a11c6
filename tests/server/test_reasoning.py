"""Thoughts are told apart from the answer, whole and streamed, and can be switched off."""

from typing import Any

import pytest

from formats.gguf_builder import CHATML
from server.rig import chat, make_rig, sse_events

CHAT = "/v1/chat/completions"
THINKER = (
    CHATML.replace("{% if add", "{% if '</think>' in 'x' %}{% endif %}{% if add")
    + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
OPENED = CHATML + "<think>\n{# </think> #}"


def ask(template: str, reply: str, **fields: Any) -> dict[str, Any]:
    """The choice of the whole answer, after the streamed one was found to be the same."""
    with make_rig(chat_template=template) as rig, rig.client() as client:
        rig.reply(reply)
        answer = client.post(CHAT, json=chat(**fields)).json()
        events = sse_events(client.post(CHAT, json=chat(stream=True, **fields)).content)
        deltas = [event["choices"][0]["delta"] for event in events]
        message = answer["choices"][0]["message"]
        assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
        thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
        assert thoughts == message.get("reasoning_content", "")
        rig.wait_idle()
        return {**answer["choices"][0], "usage": answer["usage"]}


def test_a_thought_is_not_content() -> None:
    choice = ask(THINKER, "<think>\nthe world\n</think>\n\nhello world")
    assert choice["message"]["reasoning_content"] == "the world"
    assert choice["message"]["content"] == "hello world"
    details = choice["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < choice["usage"]["completion_tokens"]


def test_a_thought_that_the_prompt_has_opened_ends_in_the_answer() -> None:
    choice = ask(OPENED, "the world</think>hello")
    assert choice["message"]["reasoning_content"] == "the world"
    assert choice["message"]["content"] == "hello"


def test_an_answer_cut_within_its_thought_has_no_content() -> None:
    choice = ask(OPENED, "the world and more", max_tokens=4)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""


def test_a_model_that_does_not_think_shows_the_marker_as_text() -> None:
    choice = ask(CHATML, "<think>hello</think>")
    assert choice["message"]["content"] == "<think>hello</think>"


@pytest.mark.parametrize(
    ("fields", "is_off"),
    [
        ({}, False),
        ({"reasoning_effort": "high"}, False),
        ({"reasoning_effort": "none"}, True),
        ({"reasoning_effort": "minimal"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, False),
    ],
)
def test_thinking_is_switched_off_by_the_templates_own_variable(fields: dict[str, Any], is_off: bool) -> None:
    with make_rig(chat_template=THINKER) as rig, rig.client() as client:
        assert client.post(CHAT, json=chat(**fields)).status_code == 200
        prompt = rig.model.tokenizer.decode(rig.runner.batches[0].sequences[0].known_token_ids)
        assert ("<think>\n\n</think>" in prompt) == is_off


def test_an_unknown_effort_is_refused() -> None:
    with make_rig() as rig, rig.client() as client:
        response = client.post(CHAT, json=chat(reasoning_effort="enormous"))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "reasoning_effort"


def test_a_bound_answer_may_be_thought_about_first() -> None:
    wanted = {"type": "json_object"}
    choice = ask(OPENED, 'the {world} </think>\n{"a": 1}', response_format=wanted)
    assert choice["message"]["reasoning_content"] == "the {world}"
    assert choice["message"]["content"] == '{"a": 1}'
    choice = ask(THINKER, '{"a": 1}', response_format=wanted)
    assert choice["message"]["content"] == '{"a": 1}'


def test_a_stop_string_within_a_thought_does_not_end_the_answer() -> None:
    choice = ask(OPENED, "the world</think>hello world!", stop=["world"])
    assert choice["message"]["reasoning_content"] == "the world"
    assert choice["message"]["content"] == "hello "
    assert choice["finish_reason"] == "stop"


def test_logprobs_are_those_of_the_content() -> None:
    with make_rig(chat_template=OPENED) as rig, rig.client() as client:
        rig.reply("the</think>hello")
        answer = client.post(CHAT, json=chat(logprobs=True)).json()["choices"][0]
        shown = b"".join(bytes(entry["bytes"]) for entry in answer["logprobs"]["content"])
        assert shown.decode() == answer["message"]["content"] == "hello"
