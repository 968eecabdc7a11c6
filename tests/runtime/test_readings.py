"""What a prompt's end gives besides a token: hidden states and the log-probabilities of given tokens."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import SamplingParams
from appliance.engine.stream import TokenEvent
from appliance.runtime.backend import Backend
from appliance.runtime.runners import make_runner
from engine.builders import read_all
from oracles.llama import llama_logits
from oracles.tiny_model import load_eager, tiny_model
from runtime.test_cpu_backend import library_folder, load

__all__ = ["library_folder"]
MODEL = tiny_model(seed=2, has_head=True)
HIDDEN = SamplingParams(max_tokens=1, temperature=0.0, wants_hidden_state=True)
PROMPTS = [np.random.default_rng(size).integers(0, 273, size).tolist() for size in (1, 33, 100)]


def engine_on(backend: Backend) -> Engine:
    pool = BlockPool(100, backend.kv_layout.block_size)
    scheduler = Scheduler(pool, max_sequences=8, step_tokens=64, context_length=512)
    return Engine(make_runner(backend), scheduler)


def read(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[TokenEvent]:
    streams = [engine.submit(prompt, params) for prompt in prompts]
    while engine.step():
        pass
    return [read_all(stream)[0][0] for stream in streams]


def cosine(first: tuple[float, ...] | None, second: np.ndarray) -> float:
    found = np.array(first)
    return float(found @ second / np.linalg.norm(found) / np.linalg.norm(second))


@pytest.mark.parametrize("is_native", [False, True])
def test_hidden_states_are_those_that_make_the_logits(
    tmp_path: Path, library_folder: Path, is_native: bool
) -> None:
    """In batches, in chunks and from cached prompts: the head's product with them is the oracle's logits."""
    path = MODEL.write(tmp_path / "m.gguf")
    if is_native:
        backend: Backend = load(path, library_folder).backend
        backend.attach_kv(100)
    else:
        backend = load_eager(path, kv_dtype=torch.float32, num_blocks=100)
    engine = engine_on(backend)
    for _ in range(2):
        for prompt, event in zip(PROMPTS, read(engine, PROMPTS, HIDDEN), strict=True):
            logits = llama_logits(MODEL.tensors, MODEL.shape, prompt)[-1]
            found = MODEL.tensors["output.weight"] @ np.array(event.hidden_state)
            assert cosine(tuple(found), logits) > (0.99 if is_native else 0.999999)


@pytest.mark.parametrize("is_native", [False, True])
def test_scored_tokens_get_their_own_log_probabilities(
    tmp_path: Path, library_folder: Path, is_native: bool
) -> None:
    backend = _backend(MODEL.write(tmp_path / "m.gguf"), library_folder, is_native=is_native)
    params = SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=0, scored_token_ids=(272, 5))
    (event,) = read(engine_on(backend), PROMPTS[1:2], params)
    logits = llama_logits(MODEL.tensors, MODEL.shape, PROMPTS[1])[-1]
    whole = math.log(np.exp(logits - logits.max()).sum()) + logits.max()
    assert event.logprobs is not None
    assert dict(event.logprobs[0].top) == pytest.approx(
        {272: logits[272] - whole, 5: logits[5] - whole}, abs=0.25 if is_native else 1e-3
    )


def _backend(path: Path, library_folder: Path, *, is_native: bool) -> Backend:
    if not is_native:
        return load_eager(path, kv_dtype=torch.float32, num_blocks=100)
    backend = load(path, library_folder).backend
    backend.attach_kv(100)
    return backend


@pytest.mark.parametrize("is_native", [False, True])
def test_every_token_of_a_prompt_gets_its_log_probability(
    tmp_path: Path, library_folder: Path, is_native: bool
) -> None:
    """In one batch with an answer under way, in chunks, and again where the prompt is computed before."""
    engine = engine_on(_backend(MODEL.write(tmp_path / "m.gguf"), library_folder, is_native=is_native))
    params = SamplingParams(max_tokens=2, temperature=0.0, num_prompt_logprobs=3)
    for _ in range(2):
        engine.submit(PROMPTS[1], SamplingParams(max_tokens=5))
        for prompt, event in zip(PROMPTS, read(engine, PROMPTS, params), strict=True):
            logits = torch.tensor(np.array(llama_logits(MODEL.tensors, MODEL.shape, prompt)))
            expected = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
            found = [entry.logprob for entry in event.prompt_logprobs]
            assert len(found) == len(prompt) - 1
            assert found == pytest.approx(expected.tolist(), abs=0.25 if is_native else 1e-3)
            assert all(
                len(entry.top) == 3 and entry.top[0][1] >= entry.logprob for entry in event.prompt_logprobs
            )


@pytest.mark.parametrize("is_native", [False, True])
def test_the_mean_state_is_the_mean_over_the_prompt(
    tmp_path: Path, library_folder: Path, is_native: bool
) -> None:
    """Hidden states at each place are known from prompts that end there."""
    engine = engine_on(_backend(MODEL.write(tmp_path / "m.gguf"), library_folder, is_native=is_native))
    prompt = PROMPTS[2][:70]
    ends = read(engine, [prompt[: length + 1] for length in range(len(prompt))], HIDDEN)
    mean = np.mean([event.hidden_state for event in ends], axis=0)
    params = SamplingParams(max_tokens=1, temperature=0.0, wants_hidden_state=True, wants_mean_state=True)
    event, alone = read(engine, [prompt, prompt[:1]], params)
    assert event.hidden_state == pytest.approx(mean, abs=1e-4)
    assert alone.hidden_state == ends[0].hidden_state
