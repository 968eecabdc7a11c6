"""The real runner under the real scheduler and engine, on a random model in float32."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.engine.batch import Batch, FailureKind, ScheduledSequence, TokenLogprobs
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import BlockId, FinishReason, SamplingParams, SequenceId
from appliance.runtime.runner import ModelRunner
from engine.builders import read_all, token_ids
from oracles.llama import llama_logits
from oracles.tiny_model import load_eager, tiny_model

MODEL = tiny_model(seed=2, has_head=True)
GREEDY = SamplingParams(temperature=0.0, num_logprobs=2)
# Two logits closer than this may change places when a matrix product is summed in another order.
NEAR_TIE = 1e-3


def make_engine(
    path: Path, *, kv_dtype: torch.dtype = torch.float32, num_blocks: int = 400, step_tokens: int = 64
) -> Engine:
    backend = load_eager(path, kv_dtype=kv_dtype, num_blocks=num_blocks)
    scheduler = Scheduler(
        BlockPool(num_blocks, 16), max_sequences=32, step_tokens=step_tokens, context_length=512
    )
    return Engine(ModelRunner(backend), scheduler)


def generate(
    engine: Engine, prompts: Sequence[list[int]], params: Sequence[SamplingParams]
) -> list[tuple[tuple[int, ...], tuple[TokenLogprobs, ...]]]:
    """Submit everything at once, step by hand until all have ended, and check the pool after each step."""
    streams = [engine.submit(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    while engine.step():
        engine._scheduler.check_invariants()
    results = []
    for stream in streams:
        events, finish = read_all(stream)
        assert finish.reason is FinishReason.LENGTH
        logprobs = tuple(item for event in events for item in event.logprobs or ())
        results.append((token_ids(events), logprobs))
    assert engine.snapshot().num_used_blocks == 0
    return results


def compared_until_near_tie(
    found: tuple[int, ...], expected: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]
) -> int:
    """Assert equality up to the first near tie of `expected`; return how many tokens that was."""
    for index, (first, second) in enumerate(entry.top for entry in logprobs):
        if first[1] - second[1] < NEAR_TIE:
            return index
        assert found[index] == expected[index], f"token {index}"
    assert len(found) == len(expected)
    return len(expected)


def random_prompts(count: int, *, longest: int = 150, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    lengths = [1, 15, 16, 17, *rng.integers(2, longest, count - 4).tolist()]
    return [rng.integers(0, 273, length).tolist() for length in lengths]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return MODEL.write(tmp_path / "tiny.gguf")


def test_32_sequences_at_once_give_what_each_gives_alone(path: Path) -> None:
    prompts = random_prompts(32)
    params = [replace(GREEDY, max_tokens=3 + 5 * i % 29) for i in range(32)]
    assert_same_as_alone(path, make_engine(path), prompts, params)


def test_preempted_sequences_give_what_each_gives_alone(path: Path) -> None:
    prompts, params = random_prompts(12, longest=40), [replace(GREEDY, max_tokens=60)] * 12
    engine = make_engine(path, num_blocks=30)
    assert_same_as_alone(path, engine, prompts, params)
    assert engine.snapshot().num_preemptions > 0


def assert_same_as_alone(
    path: Path, engine: Engine, prompts: list[list[int]], params: list[SamplingParams]
) -> None:
    together = generate(engine, prompts, params)
    num_compared = 0
    for prompt, each, (found, _) in zip(prompts, params, together, strict=True):
        ((expected, logprobs),) = generate(make_engine(path), [prompt], [each])
        num_compared += compared_until_near_tie(found, expected, logprobs)
    assert num_compared > 0.9 * sum(each.max_tokens or 0 for each in params)


def test_greedy_tokens_are_those_of_the_formulas(path: Path) -> None:
    prompt = random_prompts(5)[4]
    ((found, logprobs),) = generate(make_engine(path), [prompt], [replace(GREEDY, max_tokens=20)])
    logits = llama_logits(MODEL.tensors, MODEL.shape, [*prompt, *found])[len(prompt) - 1 : -1]
    assert compared_until_near_tie(found, tuple(logits.argmax(axis=1).tolist()), logprobs) >= 15
    shifted = logits - logits.max(axis=1, keepdims=True)
    exact = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    for index, (token_id, entry) in enumerate(zip(found, logprobs, strict=True)):
        assert entry.logprob == pytest.approx(exact[index, token_id], abs=1e-4)


def test_a_seeded_sequence_gives_the_same_alone_and_in_a_batch(path: Path) -> None:
    prompts = random_prompts(12, longest=60)
    params = [SamplingParams(temperature=0.8, top_k=20, top_p=0.95, seed=i, max_tokens=8) for i in range(12)]
    together = generate(make_engine(path), prompts, params)
    alone = [generate(make_engine(path), [p], [each])[0] for p, each in zip(prompts, params, strict=True)]
    # A draw that falls on a border within the last bit of a probability could differ; these do not.
    assert [tokens for tokens, _ in together] == [tokens for tokens, _ in alone]
    assert len({tokens for tokens, _ in together}) == 12


def test_a_shared_prefix_is_reused_and_changes_nothing(path: Path) -> None:
    shared = random_prompts(6, seed=4)[5][:40]
    assert len(shared) == 40
    prompts = [[*shared, 7], [*shared, 8, 9]]
    params = [replace(GREEDY, max_tokens=6)] * 2
    engine = make_engine(path)
    first, second = (
        generate(engine, [prompt], [each])[0] for prompt, each in zip(prompts, params, strict=True)
    )
    assert engine.snapshot().num_prefix_hit_tokens == 32
    for prompt, (found, _) in zip(prompts, (first, second), strict=True):
        ((expected, logprobs),) = generate(make_engine(path), [prompt], [params[0]])
        assert compared_until_near_tie(found, expected, logprobs) == 6


def test_int8_pages_run_and_mostly_agree(path: Path) -> None:
    prompts, params = random_prompts(16), [replace(GREEDY, max_tokens=4)] * 16
    exact = generate(make_engine(path), prompts, params)
    coarse = generate(make_engine(path, kv_dtype=torch.int8), prompts, params)
    same = sum(a[0] == b[0] for (a, _), (b, _) in zip(exact, coarse, strict=True))
    assert same >= 13
    gaps = [
        abs(dict(a[0].top)[ids[0]] - b[0].logprob)
        for (ids, a), (other, b) in zip(exact, coarse, strict=True)
        if ids[0] == other[0]
    ]
    assert 1e-6 < max(gaps) < 0.5


def scheduled(number: int, tokens: list[int], params: SamplingParams | None) -> ScheduledSequence:
    return ScheduledSequence(
        sequence_id=SequenceId(number),
        new_token_ids=tuple(tokens),
        num_computed_tokens=0,
        block_table=(BlockId(number),),
        known_token_ids=tokens,
        num_prompt_tokens=len(tokens),
        sampling=params,
    )


def test_results_come_in_the_batchs_order_with_nothing_inside_a_prompt(path: Path) -> None:
    runner = ModelRunner(load_eager(path))
    batch = Batch(
        sequences=(scheduled(3, [1, 2], None), scheduled(1, [5], GREEDY), scheduled(2, [6, 7], GREEDY))
    )
    pending = runner.launch(batch)
    assert pending.batch is batch
    outputs = runner.collect(pending).outputs
    assert [output.sequence_id for output in outputs] == [3, 1, 2]
    assert [len(output.token_ids) for output in outputs] == [0, 1, 1]
    assert outputs[0].logprobs is None
    assert all(output.hidden_state is None and output.failure is None for output in outputs)


def test_a_step_without_samples_still_writes_its_keys(path: Path) -> None:
    runner = ModelRunner(load_eager(path))
    first = replace(scheduled(1, [5, 6, 7, 8], None), new_token_ids=(5, 6, 7))
    (nothing,) = runner.collect(runner.launch(Batch(sequences=(first,)))).outputs
    assert nothing.token_ids == ()
    last = replace(first, new_token_ids=(8,), num_computed_tokens=3, sampling=GREEDY)
    (chunked,) = runner.collect(runner.launch(Batch(sequences=(last,)))).outputs
    (whole,) = runner.collect(runner.launch(Batch(sequences=(scheduled(2, [5, 6, 7, 8], GREEDY),)))).outputs
    assert chunked.token_ids == whole.token_ids


def test_hidden_states_come_to_those_that_asked(path: Path) -> None:
    runner = ModelRunner(load_eager(path))
    wishing = replace(GREEDY, wants_hidden_state=True)
    batch = Batch(sequences=(scheduled(1, [1, 2], GREEDY), scheduled(2, [3, 4], wishing)))
    plain, hidden = runner.collect(runner.launch(batch)).outputs
    assert plain.hidden_state is None
    assert hidden.hidden_state is not None
    logits = MODEL.tensors["output.weight"].astype(np.float64) @ np.array(hidden.hidden_state)
    exact = llama_logits(MODEL.tensors, MODEL.shape, [3, 4])[-1]
    assert np.abs(logits - exact).max() < 1e-4


def test_a_damaged_weight_fails_its_sequence_and_not_the_others(tmp_path: Path) -> None:
    tensors = {name: array.copy() for name, array in MODEL.tensors.items()}
    tensors["token_embd.weight"][9] = np.nan
    runner = ModelRunner(load_eager(replace(MODEL, tensors=tensors).write(tmp_path / "damaged.gguf")))
    wishing = replace(GREEDY, wants_hidden_state=True)
    batch = Batch(sequences=(scheduled(1, [1, 9], wishing), scheduled(2, [3, 4], wishing)))
    broken, sound = runner.collect(runner.launch(batch)).outputs
    assert broken.failure is not None
    assert broken.failure.kind is FailureKind.NOT_FINITE
    assert sound.failure is None
    (alone,) = runner.collect(
        ModelRunner(load_eager(MODEL.write(tmp_path / "x.gguf"))).launch(
            Batch(sequences=(scheduled(2, [3, 4], GREEDY),))
        )
    ).outputs
    assert sound.token_ids == alone.token_ids
