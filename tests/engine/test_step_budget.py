"""How many prompt tokens a step may take: the learned step times, and the budget they allow."""

import random
from dataclasses import replace

import pytest

from appliance.engine.batch import Batch, ScheduledSequence
from appliance.engine.sequence import SamplingParams, Sequence, SequenceId
from appliance.engine.sliced_prompts import SlicedPrompts
from appliance.engine.step_budget import AdaptiveBudget, FixedBudget, load_of
from appliance.engine.step_time import StepLoad, StepTimeModel


def true_s(load: StepLoad) -> float:
    """A device: 8 ms, 2 ms a prompt token, 4 ms a stream, 2 us a token read back, 1 us a pair."""
    streams = 4e-3 * load.num_streams + 2e-6 * load.context_tokens
    return 8e-3 + 2e-3 * load.prompt_tokens + streams + 1e-6 * load.prompt_pairs


def loads(count: int) -> list[StepLoad]:
    rng = random.Random(5)  # draws a workload
    return [
        StepLoad(
            num_streams=rng.randint(0, 32),
            context_tokens=rng.randint(0, 30_000),
            prompt_tokens=(tokens := rng.choice([0, 0, 7, 30, 200])),
            prompt_pairs=tokens * rng.randint(0, 6000),
            prompt_passes=1 if tokens else 0,
        )
        for _ in range(count)
    ]


def test_step_times_are_learned() -> None:
    model = StepTimeModel()
    for load in loads(300):
        model.observe(load, true_s(load))
    for load in loads(50):
        assert model.predict_s(load) == pytest.approx(true_s(load), rel=0.1)


def test_what_any_prompt_costs_is_learned_apart_from_its_tokens() -> None:
    model = StepTimeModel()
    prepared_s = 0.03
    for load in loads(300):
        model.observe(load, true_s(load) + (prepared_s if load.prompt_tokens else 0))
    streams = StepLoad(num_streams=4, context_tokens=4000)
    assert model.predict_s(streams) == pytest.approx(true_s(streams), rel=0.1)
    few = replace(streams, prompt_tokens=2, prompt_pairs=2000, prompt_passes=1)
    assert model.predict_s(few) == pytest.approx(true_s(few) + prepared_s, rel=0.1)


def test_a_slower_machine_is_noticed() -> None:
    model = StepTimeModel()
    for load in loads(300):
        model.observe(load, true_s(load))
    for load in loads(1000):
        model.observe(load, 2.5 * true_s(load))
    load = StepLoad(num_streams=8, context_tokens=4000)
    assert model.predict_s(load) == pytest.approx(2.5 * true_s(load), rel=0.1)


def test_one_step_that_was_disturbed_changes_little() -> None:
    model = StepTimeModel()
    for load in loads(300):
        model.observe(load, true_s(load))
    model.observe(StepLoad(num_streams=4, context_tokens=400), 10.0)
    load = StepLoad(num_streams=4, context_tokens=400)
    assert model.predict_s(load) == pytest.approx(true_s(load), rel=0.2)


def test_nothing_ever_costs_less_than_nothing() -> None:
    model = StepTimeModel()
    rng = random.Random(6)  # draws a workload
    for load in loads(200):
        model.observe(load, rng.random())
        assert model.predict_s(StepLoad()) >= 0
        assert model.predict_s(StepLoad(prompt_tokens=100)) >= model.predict_s(StepLoad())


def sequence(num_known: int, num_computed: int) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(num_known),
        token_ids=[1] * num_known,
        num_prompt_tokens=num_known,
        params=SamplingParams(),
        max_output_tokens=10,
        arrival_s=0.0,
        num_computed_tokens=num_computed,
    )


def batch_of(streams: list[Sequence], prompt: Sequence, num_prompt_tokens: int) -> Batch:
    shares = [*((s, 1) for s in streams), *([(prompt, num_prompt_tokens)] if num_prompt_tokens else [])]
    return Batch(
        sequences=tuple(
            ScheduledSequence(
                sequence_id=s.sequence_id,
                new_token_ids=(1,) * num_new,
                num_computed_tokens=s.num_computed_tokens,
                block_table=(),
                known_token_ids=s.token_ids,
                num_prompt_tokens=s.num_prompt_tokens,
                sampling=None if s is prompt else SamplingParams(),
            )
            for s, num_new in shares
        )
    )


def device_s(streams: list[Sequence], prompt: Sequence, num_prompt_tokens: int) -> float:
    return true_s(load_of(batch_of(streams, prompt, num_prompt_tokens)))


@pytest.mark.parametrize("slowdown", [1.5, 2.0, 4.0])
def test_a_prompt_takes_what_the_streams_target_leaves_and_no_more(slowdown: float) -> None:
    budget = AdaptiveBudget(512, slowdown=slowdown)
    streams = [sequence(301 + i, 300 + i) for i in range(4)]
    prompt = sequence(6400, 0)
    alone_s = device_s(streams, prompt, 0)
    for _ in range(40):
        budget.observe(batch_of(streams, prompt, 0), alone_s)
    taken, allowed = [], []
    while prompt.num_computed_tokens < prompt.num_tokens:
        tokens = min(budget.prompt_tokens(streams, [prompt]), prompt.num_uncomputed_tokens)
        step_s = device_s(streams, prompt, tokens)
        budget.observe(batch_of(streams, prompt, tokens), step_s)
        prompt.num_computed_tokens += tokens
        taken.append(step_s / alone_s)
        least = device_s(streams, prompt, 1) / alone_s  # a token there is always
        allowed.append(max(slowdown, least))
    over = sorted(t / a for t, a in zip(taken[20:], allowed[20:], strict=True))
    assert over[int(0.99 * len(over))] <= 1.03
    # At the prompt's end one token takes a third of a step alone: half of that stays unused.
    assert sum(over) / len(over) >= 0.9


def test_where_any_prompt_costs_much_many_tokens_go_through_a_few_layers_a_step() -> None:
    """A device that makes its weights ready for prompts: 12 ms a pass, where 4 streams take 6."""

    def tile_device_s(load: StepLoad) -> float:
        return 0.25 * true_s(load) + 12e-3 * load.prompt_passes

    slowdown, num_layers = 2.0, 30
    budget = AdaptiveBudget(512, slowdown=slowdown, num_layers=num_layers)
    sliced = SlicedPrompts(num_layers)
    streams, prompt = [sequence(301 + i, 300 + i) for i in range(4)], sequence(6400, 0)
    alone_s = tile_device_s(load_of(batch_of(streams, prompt, 0)))
    for tokens in [0] * 20 + [16] * 20:
        batch = batch_of(streams, prompt, tokens)
        budget.observe(batch, tile_device_s(load_of(batch)))
    steps_s: list[float] = []
    while prompt.num_computed_tokens < prompt.num_tokens:
        tokens = min(budget.prompt_tokens(streams, [prompt]), prompt.num_uncomputed_tokens)
        batch = batch_of(streams, prompt, 0)
        if tokens:
            chunks = sliced.chunks or batch_of([], prompt, tokens).sequences
            piece = sliced.next_slice(chunks, budget.share(streams, chunks))
            batch = replace(batch, slice=piece, sequences=batch.sequences + (() if piece else chunks))
            if piece is None or piece.is_last:
                prompt.num_computed_tokens += len(chunks[0].new_token_ids)
        steps_s.append(tile_device_s(load_of(batch)))
        budget.observe(batch, steps_s[-1])
    whole_s = sum(
        tile_device_s(load_of(batch_of([], sequence(6400, done), min(512, 6400 - done))))
        for done in range(0, 6400, 512)
    )
    later = sorted(step_s / alone_s for step_s in steps_s[20:])
    assert later[int(0.99 * len(later))] <= 1.1 * slowdown
    assert sum(steps_s) <= 2.5 * whole_s
    one_by_one_s = tile_device_s(load_of(batch_of(streams, prompt, 1)))
    assert one_by_one_s > slowdown * alone_s, "without slices a single token is too much"


def test_a_stream_after_nothing_but_prompts_costs_nothing_yet_and_breaks_nothing() -> None:
    rng = random.Random(7)  # draws a workload
    for _ in range(200):
        budget = AdaptiveBudget(512, num_layers=rng.choice([0, 30]))
        for _ in range(rng.randint(8, 20)):
            tokens = rng.randint(8, 512)
            batch = batch_of([], sequence(6400, 0), tokens)
            quicker = 0.8 if tokens < 64 else 1.0
            budget.observe(batch, quicker * (2e-3 + 1e-3 * tokens) * rng.uniform(0.9, 1.1))
        streams, prompt = [sequence(301, 300)], sequence(6400, 0)
        tokens = budget.prompt_tokens(streams, [prompt])
        assert 1 <= tokens <= 511
        budget.share(streams, batch_of([], prompt, tokens).sequences)


def test_where_reading_the_context_takes_longer_than_there_is_a_few_tokens_go_on_all_the_same() -> None:
    """Slow steps, a long context behind the prompt: a token alone would cost about as much."""
    budget = AdaptiveBudget(512, slowdown=1.2, num_layers=30)
    sliced = SlicedPrompts(30)
    streams, prompt = [sequence(301 + i, 300 + i) for i in range(4)], sequence(64_000, 60_000)
    for tokens in [0] * 40 + [8, 16, 32] * 30:
        batch = batch_of(streams, prompt, tokens)
        budget.observe(batch, 4 * true_s(load_of(batch)))
    tokens = budget.prompt_tokens(streams, [prompt])
    assert tokens == 16
    chunks = batch_of([], prompt, tokens).sequences
    piece = sliced.next_slice(chunks, budget.share(streams, chunks))
    assert piece is not None
    assert piece.end_layer < 30


def test_a_chunk_in_slices_ends_before_long() -> None:
    for factor in (0.25, 1.0, 4.0, 40.0):
        budget = AdaptiveBudget(512, slowdown=2.0, num_layers=30)
        streams, prompt = [sequence(301 + i, 300 + i) for i in range(4)], sequence(6400, 1000)
        for tokens in [0] * 40 + [8, 16, 32] * 30:
            batch = batch_of(streams, prompt, tokens)
            budget.observe(batch, factor * true_s(load_of(batch)))
        tokens = budget.prompt_tokens(streams, [prompt])
        chunk = batch_of([], prompt, tokens)
        num_steps = 1 / budget.share(streams, chunk.sequences)
        step_s = 2.0 * factor * device_s(streams, prompt, 0)
        assert num_steps * step_s <= max(0.43, 1.05 * step_s) or tokens == 16  # the fewest that are cut


def test_now_and_then_a_step_goes_without_prompts_so_that_streams_stay_measured() -> None:
    budget = AdaptiveBudget(512)
    streams, prompt = [sequence(301, 300)], sequence(6400, 0)
    budgets = [budget.prompt_tokens(streams, [prompt]) for _ in range(320)]
    assert budgets.count(0) == 5


def test_where_more_wait_than_run_steps_may_grow_with_their_ratio() -> None:
    budget = AdaptiveBudget(4096, slowdown=2.0)
    streams, prompt = [sequence(301 + i, 300 + i) for i in range(4)], sequence(6400, 0)
    for tokens in [0] * 40 + [8, 16, 32] * 30:
        budget.observe(batch_of(streams, prompt, tokens), device_s(streams, prompt, tokens))
    alone_s = device_s(streams, prompt, 0)

    def slowdown(num_waiting: int) -> float:
        tokens = budget.prompt_tokens(streams, [prompt], num_waiting=num_waiting)
        return device_s(streams, prompt, tokens) / alone_s

    assert slowdown(0) == pytest.approx(2.0, rel=0.1)
    assert slowdown(3) == pytest.approx(2.0, rel=0.1)
    assert slowdown(7) == pytest.approx(3.0, rel=0.1)
    assert slowdown(1000) == pytest.approx(5.0, rel=0.1)


def test_without_streams_a_prompt_fills_the_step() -> None:
    budget = AdaptiveBudget(512)
    assert [budget.prompt_tokens([], [sequence(6400, 0)]) for _ in range(100)] == [512] * 100


def test_a_fixed_budget_fills_every_step() -> None:
    streams = [sequence(301, 300)] * 3
    assert FixedBudget(64).prompt_tokens(streams, []) == 61
    chunks = batch_of([], sequence(6400, 0), 61).sequences
    assert FixedBudget(64).share(streams, chunks) == 1.0
