"""Schedulers as they are put together: whatever is on, outputs stay those of solo runs and all end."""

import random

import pytest

from appliance.engine.assembly import ALL_OFF, Policies, make_scheduler
from appliance.engine.block_pool import BlockPool
from appliance.engine.sequence import Lane, SamplingParams, Sequence, SequenceStatus, ServiceClass
from engine.builders import Bench, FakeClock, output
from engine.scripted_runner import ScriptedRunner

GOLD, SILVER, BRONZE = ServiceClass


def make_bench(
    policies: Policies, *, num_blocks: int = 64, max_sequences: int = 8, step_tokens: int = 32
) -> Bench:
    clock = FakeClock()
    scheduler = make_scheduler(
        BlockPool(num_blocks, 4),
        policies,
        max_sequences=max_sequences,
        step_tokens=32,
        context_length=4 * num_blocks,
    )
    runner = ScriptedRunner(
        num_blocks=num_blocks, block_size=4, step_s=0.01, token_s=0.001, sleep=clock.sleep
    )
    return Bench(scheduler, runner, clock)


def submit(bench: Bench, num_prompt: int, num_output: int, service_class: ServiceClass = SILVER) -> Sequence:
    prompt = [bench.scheduler.num_live + i for i in range(num_prompt)]
    params = SamplingParams(max_tokens=num_output)
    return bench.submit(prompt, params, service_class=service_class)


@pytest.mark.parametrize("policies", [Policies(short_work_tokens=40), ALL_OFF], ids=["on", "off"])
@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_ends_and_gets_what_it_would_alone(policies: Policies, seed: int) -> None:
    rng = random.Random(seed)  # draws a workload
    bench = make_bench(policies, num_blocks=rng.choice([24, 40, 64]))
    sequences: list[Sequence] = []
    for _ in range(60):
        if rng.random() < 0.6:
            shape = rng.choice([(3, 9), (50, 6), (1, 30)])
            sequences.append(submit(bench, *shape, rng.choice(list(ServiceClass))))
        for _ in range(rng.randint(0, 3)):
            if bench.scheduler.num_live:
                bench.step()
    bench.run()
    assert len(sequences) > 20
    assert all(output(s) == bench.solo(s) for s in sequences)
    assert bench.scheduler.pool.num_used == 0


def test_with_everything_off_sequences_start_by_arrival_in_full_steps() -> None:
    bench = make_bench(ALL_OFF, max_sequences=2)
    sequences = [submit(bench, 60, 3, each) for each in (BRONZE, SILVER, GOLD)]
    batches = bench.run()
    assert {s.service_class for s in sequences} == {SILVER}
    assert {s.lane for s in sequences} == {Lane.SHORT}
    assert [b.num_new_tokens for b in batches[:2]] == [32, 32]
    starts = [s.started_s or 0.0 for s in sequences]
    assert starts == sorted(starts)


def test_a_short_request_does_not_wait_for_a_long_prompt() -> None:
    bench = make_bench(Policies(short_work_tokens=40))
    submit(bench, 200, 4)
    bench.step()
    short = submit(bench, 8, 3)
    bench.step()
    assert short.num_output_tokens == 1


def test_gold_starts_before_those_that_came_first() -> None:
    bench = make_bench(Policies(), max_sequences=1)
    submit(bench, 8, 20)
    bench.step()
    silver, bronze, gold = (submit(bench, 8, 20, each) for each in (SILVER, BRONZE, GOLD))
    bench.run()
    # The first one was silver, so gold and bronze have more to come.
    assert (gold.started_s or 0) < (silver.started_s or 0)
    assert bronze.is_finished


def test_headroom_lets_fewer_start_and_none_be_preempted() -> None:
    def preemptions(headroom: float) -> int:
        bench = make_bench(Policies(headroom=headroom, stream_slowdown=0.0), num_blocks=32)
        for _ in range(8):
            submit(bench, 8, 40)
        bench.run()
        return bench.scheduler.num_preemptions

    assert preemptions(0.3) < preemptions(0.0)


def test_headroom_never_keeps_a_lone_request_out() -> None:
    bench = make_bench(Policies(headroom=0.9), num_blocks=16)
    sequence = submit(bench, 60, 4)
    bench.run()
    assert sequence.num_output_tokens == 4
    assert sequence.status is SequenceStatus.FINISHED


def test_answers_without_a_limit_are_expected_to_be_as_long_as_the_last_ones() -> None:
    bench = make_bench(Policies(short_work_tokens=100), num_blocks=256)
    first = bench.submit([1], SamplingParams())
    assert first.lane is Lane.LONG  # nothing known yet: 256 tokens
    for _ in range(60):
        submit(bench, 1, 10)
        bench.run()
    assert bench.submit([1], SamplingParams()).lane is Lane.SHORT
