"""The real model through the real engine, against tokens from an independent implementation."""

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from appliance.catalog import ModelFile
from appliance.engine.sequence import SamplingParams
from appliance.engine.stream import TokenEvent, TokenStream
from appliance.model_pool import ResidentModel

pytestmark = pytest.mark.product
# Where the two best logits are closer than this, float32 may choose either.
REFERENCE_MARGIN = 0.01
BATCH_MARGIN = 1e-3
# The native engine's logits are within about half a percent of float32's.
NATIVE_MARGIN = 0.3
DATA = Path(__file__).parent / "data"


def reference_items() -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads((DATA / "smollm2-greedy.json").read_text())
    return items


def first_tie(margins: Iterable[float], limit: float, num_tokens: int) -> int:
    return next((i for i, margin in enumerate(margins) if margin < limit), num_tokens)


@pytest.mark.parametrize("item", reference_items(), ids=lambda item: str(item["prompt_ids"][:3]))
def test_greedy_tokens_equal_an_independent_implementation(
    float32_model: ResidentModel, item: dict[str, Any]
) -> None:
    expected = item["greedy_ids"]
    params = SamplingParams(
        temperature=0.0, max_tokens=len(expected), stop_token_ids=float32_model.tokenizer.stop_token_ids
    )
    chosen = tokens_of(float32_model.engine.submit(item["prompt_ids"], params))
    end = first_tie(item["top2_margin"], REFERENCE_MARGIN, len(expected))
    assert end > 0
    assert chosen[:end] == expected[:end]


@pytest.mark.parametrize("item", reference_items(), ids=lambda item: str(item["prompt_ids"][:3]))
def test_the_native_engine_chooses_the_reference_tokens(
    native_model: ResidentModel, item: dict[str, Any]
) -> None:
    expected = item["greedy_ids"]
    params = SamplingParams(temperature=0.0, max_tokens=len(expected))
    chosen = tokens_of(native_model.engine.submit(item["prompt_ids"], params))
    end = first_tie(item["top2_margin"], NATIVE_MARGIN, len(expected))
    assert chosen[:end] == expected[:end]


def test_the_native_engine_answers_the_same_alone_and_among_31_others(native_model: ResidentModel) -> None:
    engine, chooser = native_model.engine, random.Random(11)
    prompts = [[chooser.randrange(40000) for _ in range(chooser.randint(1, 150))] for _ in range(32)]
    params = SamplingParams(temperature=0.0, max_tokens=24)
    alone = [tokens_of(engine.submit(prompt, params)) for prompt in prompts]
    streams = [engine.submit(prompt, params) for prompt in prompts]
    assert [tokens_of(stream) for stream in streams] == alone
    assert engine.snapshot().num_used_blocks == 0


@pytest.mark.parametrize("item", reference_items(), ids=lambda item: str(item["prompt_ids"][:3]))
def test_prompts_get_the_reference_token_ids(float32_model: ResidentModel, item: dict[str, Any]) -> None:
    tokenizer, template = float32_model.tokenizer, float32_model.chat_template
    if "messages" in item:
        assert template is not None
        assert template.encode(tokenizer, item["messages"]) == item["prompt_ids"]
    else:
        assert tokenizer.encode(item["prompt"], parse_special=True) == item["prompt_ids"]


def test_32_concurrent_streams_equal_their_solo_runs(float32_model: ResidentModel) -> None:
    engine, tokenizer = float32_model.engine, float32_model.tokenizer
    text = " ".join(item["text"] for item in reference_items())
    ids = tokenizer.encode(text, parse_special=False)
    chooser = random.Random(7)
    prompts = [ids[start : start + chooser.randint(1, 90)] for start in range(0, 32 * 9, 9)]
    lengths = [chooser.randint(1, 24) for _ in prompts]
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, num_logprobs=2, seed=1) for length in lengths
    ]
    solo = [events_of(engine.submit(p, s)) for p, s in zip(prompts, params, strict=True)]
    streams = [engine.submit(p, s) for p, s in zip(prompts, params, strict=True)]
    together = [events_of(stream) for stream in streams]
    for alone, batched, length in zip(solo, together, lengths, strict=True):
        assert len(token_ids(batched)) == length
        end = first_tie(map(margin_of, alone), BATCH_MARGIN, length)
        assert token_ids(batched)[:end] == token_ids(alone)[:end]
    assert engine.snapshot().num_used_blocks == 0


def test_a_seeded_request_gives_the_same_tokens_alone_and_in_a_batch(float32_model: ResidentModel) -> None:
    engine = float32_model.engine
    prompt = float32_model.tokenizer.encode("The old sailor said", parse_special=False)
    seeded = SamplingParams(temperature=0.8, top_p=0.95, seed=42, max_tokens=16)
    alone = tokens_of(engine.submit(prompt, seeded))
    neighbours = [engine.submit(prompt, SamplingParams(max_tokens=20)) for _ in range(5)]
    assert tokens_of(engine.submit(prompt, seeded)) == alone
    for stream in neighbours:
        tokens_of(stream)


def test_500_aborted_requests_leak_no_block(float32_model: ResidentModel) -> None:
    engine = float32_model.engine
    chooser = random.Random(3)
    for _ in range(20):
        streams = [
            engine.submit([chooser.randrange(1000) for _ in range(chooser.randint(1, 60))], SamplingParams())
            for _ in range(25)
        ]
        chooser.shuffle(streams)
        next(iter(streams[0]))
        for stream in streams:
            stream.cancel()
    for _ in range(200):
        if engine.num_live == 0:
            break
        threading.Event().wait(0.05)
    snapshot = engine.snapshot()
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.num_used_blocks) == (0, 0, 0)
    assert snapshot.num_aborted >= 500


MEASURE_LOAD = """
import re, sys, threading
from pathlib import Path
from appliance.catalog import ModelFile
from appliance.config import MemoryAmount, Settings

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

peak, done = 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

from appliance.loader import load_model
threading.Thread(target=watch, daemon=True).start()
settings = Settings(backend="eager", precision="f32", kv_memory=MemoryAmount(num_bytes=64 << 20))
model = load_model(settings, ModelFile(model_id="m", path=Path(sys.argv[1])), lambda text, share: None)
done.set()
print(peak, model.facts.weights_bytes)
model.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")
def test_loading_needs_little_more_than_the_loaded_model(model_file: ModelFile) -> None:
    largest_tensor_bytes = 49152 * 576 * 4
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE_LOAD, str(model_file.path)], capture_output=True, text=True, check=True
    )
    peak_bytes, weights_bytes = map(int, ran.stdout.split())
    assert peak_bytes < weights_bytes + largest_tensor_bytes + 300 * 10**6


def events_of(stream: TokenStream) -> list[TokenEvent]:
    return [event for event in stream if isinstance(event, TokenEvent)]


def token_ids(events: list[TokenEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def tokens_of(stream: TokenStream) -> list[int]:
    return token_ids(events_of(stream))


def margin_of(event: TokenEvent) -> float:
    assert event.logprobs is not None
    (_, best), (_, second) = event.logprobs[0].top
    return best - second
