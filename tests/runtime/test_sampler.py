"""Sampling: what may be drawn, how often, and that no row depends on its neighbours."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.batch import FailureKind, ScheduledSequence, SequenceOutput
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.model.decoder import ForwardOutputs
from appliance.runtime.row_rules import uniform
from appliance.runtime.sampler import choose, draw, nucleus_threshold, sample
from appliance.runtime.sampling_needs import MAX_CANDIDATES, needs_logits, num_candidates
from oracles.sampling import chi_square, distribution, penalised

LOGITS = (np.random.default_rng(3).standard_normal(40) * 2).tolist()


def scheduled(
    params: SamplingParams, *, prompt: tuple[int, ...] = (1,), output: tuple[int, ...] = (), number: int = 1
) -> ScheduledSequence:
    return ScheduledSequence(
        sequence_id=SequenceId(number),
        new_token_ids=(1,),
        num_computed_tokens=len(prompt) + len(output) - 1,
        block_table=(BlockId(0),),
        known_token_ids=[*prompt, *output],
        num_prompt_tokens=len(prompt),
        sampling=params,
    )


def sample_rows(rows: torch.Tensor, sequences: list[ScheduledSequence]) -> list[SequenceOutput]:
    return sample(ForwardOutputs(logits=rows.clone(), hidden=None), sequences)


def sample_one(
    logits: list[float],
    params: SamplingParams,
    *,
    prompt: tuple[int, ...] = (1,),
    output: tuple[int, ...] = (),
) -> SequenceOutput:
    (chosen,) = sample_rows(torch.tensor([logits]), [scheduled(params, prompt=prompt, output=output)])
    return chosen


def token_of(output: SequenceOutput) -> int:
    assert output.failure is None
    (token_id,) = output.token_ids
    return token_id


def draws(logits: list[float], params: SamplingParams, count: int) -> list[int]:
    """Draw at `count` evenly spread numbers, each a little off, so that shares come out exactly."""
    row = torch.tensor(logits)
    return [choose(row.clone(), params, (i + 0.5) / count) for i in range(count)]


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(top_k=1, seed=3)])
def test_greedy_takes_the_likeliest(params: SamplingParams) -> None:
    assert token_of(sample_one(LOGITS, params)) == int(np.argmax(LOGITS))


@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy_not_nonsense(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1)
    assert token_of(sample_one([1.0, 30.0, 2.0, -400.0], params)) == 1


@pytest.mark.parametrize(
    "cuts",
    [
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"temperature": 2.0},
        {"temperature": 1.0, "top_k": 7},
        {"temperature": 1.0, "top_k": 1000},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.0, "top_p": 0.05},
        {"temperature": 0.7, "min_p": 0.1},
        {"temperature": 1.5, "min_p": 1.0},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 0.8, "top_k": 3, "top_p": 0.99},
    ],
    ids=str,
)
def test_every_token_gets_its_share(cuts: dict[str, float]) -> None:
    expected = distribution(LOGITS, **cuts)
    count = 2000
    found = draws(LOGITS, SamplingParams(**cuts), count)
    for token in range(len(LOGITS)):
        # Evenly spread numbers miss a share by one draw at most, at each of its two borders.
        assert abs(found.count(token) - expected.get(token, 0.0) * count) <= 1.01
    assert set(found) <= set(expected)


def test_seeds_spread_over_the_distribution() -> None:
    params = {"temperature": 0.9, "top_k": 12}
    expected = distribution(LOGITS, **params)
    found = [token_of(sample_one(LOGITS, SamplingParams(seed=seed, **params))) for seed in range(3000)]
    # 11 degrees of freedom: 31.3 is passed once in a thousand times; the seeds are fixed, so never here.
    assert chi_square(found, expected) < 31.3


def test_successive_tokens_of_one_seed_spread_over_the_distribution() -> None:
    expected = distribution(LOGITS, temperature=0.9, top_k=12)
    params = SamplingParams(temperature=0.9, top_k=12, seed=42)
    found = [token_of(sample_one(LOGITS, params, output=(1,) * index)) for index in range(3000)]
    assert chi_square(found, expected) < 31.3


def test_unseeded_draws_differ() -> None:
    params = SamplingParams(temperature=1.0)
    found = {token_of(sample_one([0.0] * 1000, params)) for _ in range(20)}
    assert len(found) > 10


def test_the_number_is_a_function_of_seed_and_index_alone() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    numbers = [uniform(seed, index) for seed in range(40) for index in range(40)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(1, 23) != uniform(12, 3)


def test_a_row_gets_the_same_alone_and_in_a_batch() -> None:
    rng = np.random.default_rng(9)
    rows = torch.from_numpy(rng.standard_normal((32, 301)) * 3).float()
    params = [
        SamplingParams(
            temperature=(0.0, 0.7, 1.0, 1.9)[i % 4],
            top_k=(0, 5, 50)[i % 3],
            top_p=(1.0, 0.8)[i % 2],
            min_p=(0.0, 0.05)[i // 2 % 2],
            repetition_penalty=(1.0, 1.3)[i // 4 % 2],
            frequency_penalty=(0.0, 0.5)[i // 8 % 2],
            seed=i,
        )
        for i in range(32)
    ]
    sequences = [scheduled(p, output=tuple(range(i % 5)), number=i) for i, p in enumerate(params)]
    together = sample_rows(rows, sequences)
    for i, sequence in enumerate(sequences):
        assert sample_rows(rows[i : i + 1], [sequence]) == [together[i]]
    backwards = sample_rows(rows.flip(0), sequences[::-1])
    assert backwards[::-1] == together


@pytest.mark.parametrize("size", [5, 1024, 1025, 4000])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.97])
def test_a_flat_distribution_keeps_all_its_ties(size: int, top_p: float) -> None:
    params, row = SamplingParams(temperature=1.0, top_p=top_p), torch.full((size,), 0.25)
    for token in (0, 1, size // 2, size - 1):
        assert choose(row.clone(), params, (token + 0.5) / size) == token


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.999])
def test_a_nucleus_wider_than_the_guess_is_found_whole(top_p: float) -> None:
    # Slowly falling, so that thousands of tokens share the mass and no two are alike.
    logits = torch.linspace(0.5, -0.5, 6000)[torch.from_numpy(np.random.default_rng(0).permutation(6000))]
    threshold = float(nucleus_threshold(logits.softmax(-1), top_p))
    kept = int((logits.softmax(-1) >= threshold).sum())
    expected = len(distribution(logits.tolist(), temperature=1.0, top_p=top_p))
    assert expected > 1024 or top_p == 0.2
    assert abs(kept - expected) <= 1  # float32 probabilities move the border by a token at most


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30, width=16), min_size=1, max_size=50),
    temperature=st.floats(0.05, 2.0),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    number=st.floats(0.0, 1.0, exclude_max=True),
)
def test_what_is_drawn_is_never_less_likely_than_the_cuts_allow(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, number: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    token_id = choose(torch.tensor(logits), params, number)
    cuts = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    allowed = distribution(logits, temperature=temperature, **cuts)
    # Ties with the last kept token stay; a border of float32 is a hair wider.
    least = min(logits[token] for token in allowed)
    assert logits[token_id] >= least - 1e-5 * temperature


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition": 1.7},
        {"repetition": 0.8},
        {"presence": 1.5},
        {"frequency": 0.6},
        {"frequency": -0.4},
        {"repetition": 1.2, "presence": -0.5, "frequency": 0.3},
    ],
    ids=str,
)
def test_penalties_follow_their_definitions(penalties: dict[str, float]) -> None:
    prompt, output = (0, 3, 3, 5, 11), (5, 7, 7, 7, 2)
    expected = distribution(penalised(LOGITS, prompt, output, **penalties), temperature=1.0)
    params = {f"{name}_penalty": value for name, value in penalties.items()}
    found = [
        token_of(sample_one(LOGITS, SamplingParams(seed=seed, **params), prompt=prompt, output=output))
        for seed in range(2500)
    ]
    # 39 degrees of freedom at most: 72 is passed once in a thousand times.
    assert chi_square(found, expected) < 72
    greedy = sample_one(LOGITS, SamplingParams(temperature=0.0, **params), prompt=prompt, output=output)
    assert token_of(greedy) == max(expected, key=lambda token: expected[token])


def test_additive_penalties_leave_the_prompt_alone() -> None:
    params = SamplingParams(temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)
    logits = [3.0, 2.5, 0.0]
    assert token_of(sample_one(logits, params, prompt=(0, 0, 0))) == 0
    assert token_of(sample_one(logits, params, prompt=(0,), output=(0,))) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_tokens_wait_for_min_tokens(temperature: float) -> None:
    # Ids past the vocabulary happen: a tokenizer may know more tokens than a model has rows.
    params = SamplingParams(
        temperature=temperature, min_tokens=2, stop_token_ids=frozenset({2, 0, 999}), seed=5
    )
    logits = [9.0, 1.0, 50.0, 0.5]
    for num_output, allowed in ((0, {1, 3}), (1, {1, 3}), (2, {2})):
        assert token_of(sample_one(logits, params, output=(1,) * num_output)) in allowed


def test_min_tokens_without_a_stop_token_in_the_vocabulary_changes_nothing() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=5, stop_token_ids=frozenset({999}))
    assert token_of(sample_one(LOGITS, params)) == int(np.argmax(LOGITS))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    rows = torch.tensor([LOGITS, LOGITS, LOGITS])
    rows[1, 17] = bad
    params = SamplingParams(temperature=0.0)
    outputs = sample_rows(rows, [scheduled(params, number=i) for i in range(3)])
    assert [output.sequence_id for output in outputs] == [0, 1, 2]
    assert token_of(outputs[0]) == token_of(outputs[2]) == int(np.argmax(LOGITS))
    assert outputs[1].failure is not None
    assert outputs[1].failure.kind is FailureKind.NOT_FINITE
    assert outputs[1].token_ids == ()


@pytest.mark.parametrize("num_logprobs", [0, 1, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.7])
def test_logprobs_are_of_the_raw_distribution(num_logprobs: int, temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature, top_k=3, repetition_penalty=1.9, num_logprobs=num_logprobs, seed=8
    )
    output = sample_one(LOGITS, params, prompt=(int(np.argmax(LOGITS)),))
    raw = np.array(LOGITS) - math.log(math.fsum(math.exp(x) for x in LOGITS))
    assert output.logprobs is not None
    (logprobs,) = output.logprobs
    assert logprobs.logprob == pytest.approx(raw[token_of(output)], abs=1e-5)
    order = np.argsort(-raw)[:num_logprobs]
    assert [token_id for token_id, _ in logprobs.top] == order.tolist()
    assert [value for _, value in logprobs.top] == pytest.approx(raw[order].tolist(), abs=1e-5)


def test_logprobs_come_only_when_asked_for() -> None:
    assert sample_one(LOGITS, SamplingParams(temperature=0.0)).logprobs is None


def test_a_vocabulary_of_one_token_works() -> None:
    params = SamplingParams(temperature=1.0, top_k=5, top_p=0.5, min_p=0.5, num_logprobs=1, seed=0)
    output = sample_one([2.0], params, prompt=(0,))
    assert token_of(output) == 0
    assert output.logprobs is not None
    assert output.logprobs[0].logprob == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_p": 0.5},
        {"top_k": MAX_CANDIDATES + 1},
        {"temperature": 0.0, "num_logprobs": 0},
        {"temperature": 0.0, "presence_penalty": 0.1},
        {"top_k": 5, "repetition_penalty": 1.1},
        {"top_k": 5, "min_tokens": 1, "stop_token_ids": frozenset({3})},
    ],
    ids=str,
)
def test_what_best_tokens_cannot_answer_asks_for_logits(changes: dict[str, float]) -> None:
    sequence = scheduled(SamplingParams(**changes))
    assert needs_logits(sequence)
    assert num_candidates(sequence) == 1


def test_log_probabilities_are_read_of_the_best_tokens() -> None:
    assert num_candidates(scheduled(SamplingParams(top_k=2, num_logprobs=5))) == 5


def test_past_min_tokens_best_tokens_are_enough() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=1, stop_token_ids=frozenset({3}))
    assert needs_logits(scheduled(params))
    assert not needs_logits(scheduled(params, output=(1,)))


def test_a_step_without_rows_gives_nothing() -> None:
    assert sample(ForwardOutputs(logits=torch.empty(0, 5), hidden=None), []) == []


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000])
def test_a_draw_passes_the_running_total_across_chunks(size: int) -> None:
    rng = np.random.default_rng(size)
    weights = rng.random(size) * (rng.random(size) < 0.3)
    weights[rng.integers(size)] = 1.0
    totals = np.cumsum(weights)
    for number in [0.0, *rng.random(50).tolist(), 1 - 2**-53]:
        index = draw(torch.from_numpy(weights), number)
        assert weights[index] > 0
        assert totals[index] >= totals[-1] * number * (1 - 1e-12)
        assert totals[index] - weights[index] <= totals[-1] * number * (1 + 1e-12)


def test_two_tokens_that_change_places_by_a_last_bit_do_not_change_the_draw() -> None:
    """Drawn in vocabulary order: from the likeliest down, half of these draws would flip."""
    for seed in range(40):
        params = SamplingParams(temperature=1.0, top_k=2, seed=seed)
        over = token_of(sample_one([5.0, 1.0 + 1e-6, 5.0 + 1e-6], params))
        under = token_of(sample_one([5.0 + 1e-6, 1.0, 5.0], params))
        assert over == under
