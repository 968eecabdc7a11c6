"""Several answers to one prompt: computed once, shared block by block, apart from the first write on."""

import pytest

from appliance.engine.batch import FailureKind, StepFailure
from appliance.engine.sequence import FinishReason, SamplingParams, Sequence
from engine.builders import Bench, make_bench, make_engine, output, read_all, token_ids


def submit_forks(bench: Bench, prompt: list[int], max_tokens: list[int]) -> list[Sequence]:
    leader = bench.submit(prompt, SamplingParams(max_tokens=max_tokens[0]))
    others = [bench.submit(prompt, SamplingParams(max_tokens=n), fork_of=leader) for n in max_tokens[1:]]
    return [leader, *others]


@pytest.mark.parametrize("num_prompt", [1, 3, 4, 5, 7, 8, 30])
@pytest.mark.parametrize("enable_prefix_cache", [True, False])
def test_choices_compute_their_prompt_once_and_each_equals_its_solo_run(
    num_prompt: int, enable_prefix_cache: bool
) -> None:
    bench = make_bench(step_tokens=11, enable_prefix_cache=enable_prefix_cache)
    forks = submit_forks(bench, list(range(num_prompt)), [9, 1, 14, 6])
    batches = bench.run()
    assert [output(s) for s in forks] == [bench.solo(s) for s in forks]
    # Every follower computes the last token of the prompt once more, for its output.
    prompt_tokens = sum(
        max(0, min(s.num_new_tokens, s.num_prompt_tokens - s.num_computed_tokens))
        for batch in batches
        for s in batch.sequences
    )
    assert prompt_tokens == num_prompt + 3
    assert bench.scheduler.pool.num_used == 0


def test_full_blocks_are_shared_and_the_last_one_is_copied_for_all_but_one() -> None:
    bench = make_bench(num_blocks=64, block_size=4)
    forks = submit_forks(bench, list(range(10)), [20, 20, 20])
    bench.step()
    (leader, *followers) = forks
    assert [s.num_computed_tokens for s in followers] == [0, 0]
    batch, _ = bench.step()
    # Prompt: 2 full blocks and 2 tokens. Leader and first follower copy the third; the last writes in place.
    assert len(batch.block_copies) == 2
    assert bench.scheduler.pool.num_used == 2 + 3
    assert leader.block_table[:2] == followers[0].block_table[:2] == followers[1].block_table[:2]
    assert len({s.block_table[2] for s in forks}) == 3
    assert [s.num_computed_tokens for s in followers] == [10, 10]
    bench.run()
    assert [output(s) for s in forks] == [bench.solo(s) for s in forks]


def test_a_published_last_block_is_copied_and_stays_as_it_is() -> None:
    bench = make_bench(block_size=4)
    forks = submit_forks(bench, list(range(8)), [9, 9])
    bench.step()
    batch, _ = bench.step()
    (copy,) = batch.block_copies
    assert copy.source == forks[0].block_table[1]
    assert copy.target == forks[1].block_table[1]
    bench.run()
    assert [output(s) for s in forks] == [bench.solo(s) for s in forks]


@pytest.mark.parametrize("is_failing", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_choices_outlive_the_one_that_computes_their_prompt(num_steps: int, is_failing: bool) -> None:
    bench = make_bench(step_tokens=5)
    forks = submit_forks(bench, list(range(18)), [6, 6, 6])
    for _ in range(num_steps):
        bench.step()
    if is_failing:
        failure = StepFailure(kind=FailureKind.NOT_FINITE, message="a logit is not finite")
        bench.runner.fail = lambda s: failure if s.sequence_id == forks[0].sequence_id else None
        bench.step()
    else:
        bench.scheduler.abort(forks[0].sequence_id)
    bench.scheduler.check_invariants()
    bench.run()
    assert forks[0].is_finished
    assert [output(s) for s in forks[1:]] == [bench.solo(s) for s in forks[1:]]


def test_a_choice_that_is_ended_while_it_waits_harms_no_other() -> None:
    bench = make_bench(step_tokens=5)
    forks = submit_forks(bench, list(range(18)), [6, 6, 6])
    bench.step()
    assert bench.scheduler.num_waiting == 2
    assert bench.scheduler.abort(forks[1].sequence_id) is forks[1]
    bench.scheduler.check_invariants()
    bench.run()
    assert forks[1].finish_reason is FinishReason.ABORT
    assert [output(s) for s in (forks[0], forks[2])] == [bench.solo(s) for s in (forks[0], forks[2])]


def test_a_deadline_counts_until_the_shared_prompt_is_begun() -> None:
    bench = make_bench(step_tokens=5, max_sequences=1)
    leader = bench.submit(list(range(18)), SamplingParams(max_tokens=3), deadline_s=bench.clock() + 5)
    fork = bench.submit(
        list(range(18)), SamplingParams(max_tokens=3), deadline_s=bench.clock() + 5, fork_of=leader
    )
    late = bench.submit([1], SamplingParams(max_tokens=3), deadline_s=bench.clock() + 5)
    bench.step()
    bench.clock.sleep(6)
    assert bench.scheduler.expire(bench.clock()) == [late]
    bench.run()
    assert output(fork) == bench.solo(fork)


def test_choices_that_never_started_expire_together() -> None:
    bench = make_bench()
    leader = bench.submit([1, 2], deadline_s=bench.clock() + 5)
    fork = bench.submit([1, 2], deadline_s=bench.clock() + 5, fork_of=leader)
    bench.clock.sleep(6)
    assert bench.scheduler.expire(bench.clock()) == [leader, fork]
    assert bench.scheduler.num_live == 0
    bench.scheduler.check_invariants()


def test_choices_in_a_pool_too_small_for_all_are_preempted_and_end_as_alone() -> None:
    bench = make_bench(num_blocks=9, block_size=4, context_length=36)
    forks = submit_forks(bench, list(range(10)), [24, 24, 24, 24])
    bench.run()
    assert bench.scheduler.num_preemptions > 0
    assert [output(s) for s in forks] == [bench.solo(s) for s in forks]


def test_all_choices_are_queued_or_none() -> None:
    bench = make_bench(max_sequences=2)
    engine = make_engine(bench, queue_limit=1)
    with pytest.raises(Exception, match="waiting"):
        engine.submit_choices([1], [SamplingParams(max_tokens=1)] * 4)
    assert engine.num_live == 0
    streams = engine.submit_choices([1, 2], [SamplingParams(max_tokens=2)] * 3)
    while engine.step():
        pass
    results = [token_ids(read_all(stream)[0]) for stream in streams]
    assert results == [bench.runner.solo([1, 2], SamplingParams(max_tokens=2), limit=128)] * 3
