"""A sleep put into one stage is found there: by the request's figures and by the dashboard's waterfall."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from appliance.server.schemas import FinishedRequests, RequestStages
from appliance.text.chat_template import ChatTemplate
from appliance.text.constraints import CompiledGrammar, ConstraintCompiler
from appliance.text.grammar import Grammar
from formats.gguf_builder import CHATML
from server.rig import COMPILER, TOKENIZER, Rig, chat
from tui.timed_request import TimedRequest

# Far above what a busy machine makes of any other stage here.
SLEEP_S = 0.4
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


class SlowTemplate(ChatTemplate):
    def segments(self, *arguments: Any, **options: Any) -> list[str | int]:
        time.sleep(SLEEP_S)
        return super().segments(*arguments, **options)


class SlowTokenizer:
    """The rig's tokenizer with a sleep in one of its methods."""

    def __init__(self, slow: str) -> None:
        self._slow = slow

    def __getattr__(self, name: str) -> Any:
        found = getattr(TOKENIZER, name)
        if name != self._slow:
            return found

        def slowly(*arguments: Any, **options: Any) -> Any:
            time.sleep(SLEEP_S)
            return found(*arguments, **options)

        return slowly


class SlowCompiler(ConstraintCompiler):
    def __init__(self) -> None:
        pass

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        time.sleep(SLEEP_S)
        return COMPILER.compile(grammar)


def slow_template(rig: Rig) -> None:
    put(rig, chat_template=SlowTemplate(CHATML, TOKENIZER.bos_token, TOKENIZER.eos_token))


def slow_tokenizer(rig: Rig) -> None:
    put(rig, tokenizer=SlowTokenizer("encode_segments"))


def slow_detokenizer(rig: Rig) -> None:
    put(rig, tokenizer=SlowTokenizer("token_bytes"))


def slow_compiler(rig: Rig) -> None:
    rig.reply('{"a": 1}')
    put(rig, constraints=SlowCompiler())


def slow_first_step(rig: Rig) -> None:
    rig.runner.step_s = SLEEP_S
    rig.reply("a", ends=False)


def slow_decode(rig: Rig) -> None:
    rig.runner.step_s = SLEEP_S / 4
    rig.reply("a", ends=False)


def put(rig: Rig, **parts: Any) -> None:
    rig.state.pool.remove(rig.model.model_id)
    rig.state.pool.add(replace(rig.model, **parts))


@pytest.mark.parametrize(
    ("stage", "slow", "fields"),
    [
        ("template", slow_template, {}),
        ("tokenize", slow_tokenizer, {}),
        ("grammar", slow_compiler, {"response_format": SCHEMA}),
        ("prefill", slow_first_step, {"max_tokens": 1}),
        ("decode", slow_decode, {"max_tokens": 12}),
    ],
)
def test_the_slowed_stage_is_the_longest_bar(
    rig: Rig, stage: str, slow: Callable[[Rig], None], fields: dict[str, Any]
) -> None:
    slow(rig)
    request = finished(rig, fields)
    assert longest(request) == stage
    assert getattr(request, f"{stage}_s") >= SLEEP_S


def test_slow_detokenizing_is_told_within_decoding(rig: Rig) -> None:
    slow_detokenizer(rig)
    rig.reply("a", ends=False)
    request = finished(rig, {"max_tokens": 2})
    assert request.detokenize_s >= 2 * SLEEP_S
    assert longest(request) == "detokenize"


def finished(rig: Rig, fields: dict[str, Any]) -> RequestStages:
    with rig.client() as client:
        answer = client.post("/v1/chat/completions", json=chat(stream=True, **fields))
        assert answer.status_code == 200, answer.text
        rig.wait_idle()
        body = client.get("/system/v1/requests").content
    (request,) = msgspec.json.decode(body, type=FinishedRequests).requests
    return request


def longest(request: RequestStages) -> str:
    return max(TimedRequest(request).stages, key=lambda stage: stage.duration_s).name
