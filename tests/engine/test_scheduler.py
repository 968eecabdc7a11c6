"""Scheduler: who gets tokens and blocks, who waits, who ends and how."""

import pytest

from appliance.engine.batch import FailureKind, SequenceOutput, StepFailure, StepResult
from appliance.engine.sequence import FinishReason, SamplingParams, SequenceStatus
from appliance.errors import InvalidRequest, PromptTooLong
from engine.builders import Bench, make_bench, output


def shares(bench: Bench) -> list[tuple[int, bool]]:
    """Step once; per scheduled sequence, how many tokens it got and whether one was sampled."""
    batch, _ = bench.step()
    return [(s.num_new_tokens, s.sampling is not None) for s in batch.sequences]


def upto(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens)


def test_a_prompt_and_its_answer_take_one_step_per_token() -> None:
    bench = make_bench()
    sequence = bench.submit([5, 6, 7], upto(4))
    assert len(bench.run()) == 4
    assert output(sequence) == bench.solo(sequence)
    assert sequence.finish_reason is FinishReason.LENGTH


def test_a_long_prompt_is_computed_in_chunks_and_sampled_at_its_end_only() -> None:
    bench = make_bench(step_tokens=10)
    bench.submit(list(range(23)), upto(2))
    assert shares(bench) == [(10, False)]
    assert shares(bench) == [(10, False)]
    assert shares(bench) == [(3, True)]
    assert shares(bench) == [(1, True)]


def test_a_long_prompt_never_holds_up_running_streams() -> None:
    bench = make_bench(step_tokens=10)
    first = bench.submit([1, 2], upto(20))
    bench.submit(list(range(50, 90)), upto(2))
    second = bench.submit([3], upto(20))
    assert shares(bench) == [(2, True), (8, False)]
    assert shares(bench) == [(1, True), (9, False)]
    bench.run()
    assert output(first) == bench.solo(first)
    assert output(second) == bench.solo(second)


def test_a_prompt_that_fills_the_step_lets_the_next_one_start_with_what_it_leaves() -> None:
    bench = make_bench(step_tokens=8)
    bench.submit(list(range(30)), upto(3))
    assert shares(bench) == [(8, False)]
    bench.submit([7], upto(9))
    assert shares(bench) == [(8, False)]
    assert shares(bench) == [(8, False)]
    assert shares(bench) == [(6, True), (1, True)]
    assert shares(bench) == [(1, True), (1, True)]


def test_sequences_start_in_the_order_of_arrival_up_to_the_most_at_once() -> None:
    bench = make_bench(max_sequences=3)
    sequences = [bench.submit([i], upto(1 + i)) for i in range(5)]
    bench.step()
    assert [s.status for s in sequences[3:]] == [SequenceStatus.WAITING] * 2
    assert sequences[0].is_finished
    bench.step()
    assert sequences[3].status is SequenceStatus.RUNNING
    bench.run()
    starts = [s.started_s for s in sequences]
    assert starts == sorted(starts)


def test_every_running_sequence_can_get_a_token_in_every_step() -> None:
    bench = make_bench(max_sequences=8, step_tokens=3)
    sequences = [bench.submit([i], upto(5)) for i in range(6)]
    bench.step()
    assert bench.scheduler.num_running == 3
    assert bench.scheduler.num_open_places == 0
    bench.run()
    assert all(output(s) == bench.solo(s) for s in sequences)


def test_preempted_sequence_keeps_its_tokens() -> None:
    bench = make_bench(num_blocks=6, block_size=2)
    old, young = bench.submit([1, 2, 3], upto(9)), bench.submit([4, 5, 6], upto(9))
    while not young.num_preemptions:
        bench.step()
    assert young.status is SequenceStatus.WAITING
    assert young.num_output_tokens > 0
    assert not young.block_table
    bench.run()
    assert (output(old), output(young)) == (bench.solo(old), bench.solo(young))
    assert old.num_preemptions == 0
    assert young.num_output_tokens == 9


def test_preempted_sequences_resume_in_their_order_before_anyone_starts() -> None:
    bench = make_bench(num_blocks=12, block_size=1, context_length=12)
    running = [bench.submit([i], upto(8)) for i in (10, 20, 30)]
    while not running[2].num_preemptions:
        bench.step()
    late = bench.submit([40], upto(8))
    while sum(s.num_preemptions for s in running) < 2:
        bench.step()
        assert late.started_s is None
    waiting = list(bench.scheduler.live_sequences())[bench.scheduler.num_running :]
    assert waiting == [*running[1:], late]
    bench.run()
    assert all(output(s) == bench.solo(s) for s in [*running, late])


def test_a_resumed_sequence_finds_its_own_blocks_again_and_counts_no_prefix_hit() -> None:
    bench = make_bench(num_blocks=9, block_size=2, context_length=18)
    old, young = bench.submit([1, 2, 3], upto(7)), bench.submit([4, 5, 6, 7, 8], upto(12))
    bench.run()
    assert young.num_preemptions > 0
    assert young.num_prefix_hit_tokens == 0
    assert (output(old), output(young)) == (bench.solo(old), bench.solo(young))
    resumed = [s for b in bench.runner.batches for s in b.sequences if s.sequence_id == young.sequence_id]
    assert any(s.num_computed_tokens > 0 and s.num_new_tokens > 1 for s in resumed)


def test_a_waiting_prompt_leaves_a_block_for_each_running_sequence() -> None:
    bench = make_bench(num_blocks=6, block_size=4, context_length=24)
    bench.submit([1, 2, 3, 4], upto(9))
    bench.step()
    big = bench.submit(list(range(16)), upto(2))  # just the four blocks that are left
    bench.step()
    assert big.started_s is None
    assert bench.scheduler.num_open_places == 0
    bench.run()
    assert big.num_preemptions == 0
    assert bench.scheduler.num_open_places == 8


def test_a_shared_prompt_is_computed_once() -> None:
    bench = make_bench()
    prompt = list(range(30))
    first = bench.submit([*prompt, 1], upto(3))
    bench.run()
    second = bench.submit([*prompt, 2], upto(3))
    assert shares(bench) == [(31 - 28, True)]
    assert second.num_prefix_hit_tokens == 28
    assert bench.scheduler.num_prefix_hit_tokens == 28
    assert bench.scheduler.num_prompt_tokens == 62
    bench.run()
    assert (output(first), output(second)) == (bench.solo(first), bench.solo(second))


def test_the_next_turn_of_a_conversation_reuses_the_answer_too() -> None:
    bench = make_bench()
    first = bench.submit(list(range(7)), upto(10))
    bench.run()
    second = bench.submit([*first.token_ids, 3, 4, 5], upto(3))
    bench.run()
    assert second.num_prefix_hit_tokens == 16
    assert output(second) == bench.solo(second)


@pytest.mark.parametrize("salt", ["", "tenant"])
def test_prefixes_are_shared_within_a_salt_only(salt: str) -> None:
    bench = make_bench()
    bench.submit(list(range(20)), upto(2), salt=salt)
    bench.run()
    other = bench.submit(list(range(20)), upto(2), salt="another")
    bench.run()
    assert other.num_prefix_hit_tokens == 0


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    bench = make_bench(enable_prefix_cache=False)
    for _ in range(2):
        sequence = bench.submit(list(range(20)), upto(2))
        bench.run()
        assert sequence.num_prefix_hit_tokens == 0
    assert bench.scheduler.pool.num_cached == 0


def test_a_stop_token_ends_and_is_counted() -> None:
    bench = make_bench()
    free_run = bench.runner.solo([1, 2], SamplingParams(), limit=20)
    params = SamplingParams(stop_token_ids=frozenset({free_run[3]}))
    sequence = bench.submit([1, 2], params)
    update = None
    while bench.scheduler.num_live:
        (update,) = bench.step()[1]
    assert output(sequence) == free_run[:4]
    assert sequence.finish_reason is FinishReason.STOP
    assert update is not None
    assert update.ends_with_stop_token


def test_a_stop_token_does_not_end_before_min_tokens() -> None:
    bench = make_bench()
    bench.runner.replies = [7, 7, 7, 7, 7]
    sequence = bench.submit([1, 2], SamplingParams(stop_token_ids=frozenset({7}), min_tokens=3))
    bench.run()
    assert output(sequence) == (7, 7, 7, 7)
    assert sequence.finish_reason is FinishReason.STOP


def test_tokens_after_the_end_are_dropped() -> None:
    bench = make_bench()
    sequence = bench.submit([1, 2], SamplingParams(stop_token_ids=frozenset({8}), max_tokens=9))
    batch = bench.scheduler.schedule()
    speculative = SequenceOutput(sequence_id=sequence.sequence_id, token_ids=(5, 8, 6))
    (update,) = bench.scheduler.update(batch, StepResult(outputs=(speculative,)))
    assert update.token_ids == (5, 8)
    assert output(sequence) == (5, 8)
    bench.scheduler.check_invariants()


def test_several_tokens_from_one_step_are_caught_up_with() -> None:
    bench = make_bench()
    sequence = bench.submit([1, 2], upto(9))
    batch = bench.scheduler.schedule()
    output_of_step = SequenceOutput(sequence_id=sequence.sequence_id, token_ids=(5, 8, 6))
    bench.runner.launch(batch)
    bench.scheduler.update(batch, StepResult(outputs=(output_of_step,)))
    assert shares(bench) == [(3, True)]
    bench.run()
    assert sequence.num_output_tokens == 9


def test_the_context_bounds_the_answer() -> None:
    bench = make_bench(context_length=10)
    sequence = bench.submit(list(range(7)), upto(100))
    bench.run()
    assert sequence.num_output_tokens == 3
    assert sequence.finish_reason is FinishReason.LENGTH


def test_a_lone_sequence_grows_to_the_whole_pool_and_ends() -> None:
    bench = make_bench(num_blocks=3, block_size=4, context_length=100)
    sequence = bench.submit([1, 2, 3])
    bench.run()
    assert sequence.num_tokens == 12
    assert output(sequence) == bench.solo(sequence)


def test_a_prompt_past_the_context_is_refused_with_the_excess() -> None:
    bench = make_bench(context_length=10)
    with pytest.raises(PromptTooLong, match=r"12 tokens .* 10, .* by 3 tokens"):
        bench.submit(list(range(12)))
    assert bench.submit(list(range(9))).max_output_tokens == 1


def test_a_prompt_past_the_whole_pool_is_refused_with_the_arithmetic() -> None:
    bench = make_bench(num_blocks=3, block_size=4, context_length=100)
    with pytest.raises(
        InvalidRequest, match=r"14 tokens .* 12 \(3 blocks of 4\).* by 3 tokens .*--kv-memory"
    ):
        bench.submit(list(range(14)))
    assert bench.submit(list(range(11))).max_output_tokens == 1


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 5), ([1], 0), ([1], -3)])
def test_nothing_to_do_is_refused(prompt: list[int], max_tokens: int) -> None:
    with pytest.raises(InvalidRequest):
        make_bench().submit(prompt, upto(max_tokens))


def test_a_failure_ends_one_sequence_and_its_content_is_not_reused() -> None:
    bench = make_bench()
    bad, good = bench.submit(list(range(20)), upto(9)), bench.submit([1, 2], upto(9))
    bench.step()
    failure = StepFailure(kind=FailureKind.NOT_FINITE, message="a logit is NaN")
    bench.runner.fail = lambda s: failure if s.sequence_id == bad.sequence_id else None
    _, updates = bench.step()
    assert updates[0].failure is failure
    assert (bad.finish_reason, bad.failure) == (FinishReason.ERROR, "a logit is NaN")
    bench.run()
    assert output(good) == bench.solo(good)
    again = bench.submit(list(range(20)), upto(2))
    bench.run()
    assert again.num_prefix_hit_tokens == 0


def test_abort_frees_a_waiting_and_a_running_sequence_at_once() -> None:
    bench = make_bench(max_sequences=1)
    running, waiting = bench.submit([1, 2, 3], upto(50)), bench.submit([4], upto(50))
    bench.step()
    for sequence in (waiting, running):
        assert bench.scheduler.abort(sequence.sequence_id) is sequence
        assert sequence.finish_reason is FinishReason.ABORT
        bench.scheduler.check_invariants()
    assert bench.scheduler.pool.num_used == 0
    assert bench.scheduler.abort(running.sequence_id) is None


def test_abort_during_a_step_takes_effect_right_after_it() -> None:
    bench = make_bench()
    sequence, other = bench.submit(list(range(9)), upto(50)), bench.submit([1], upto(3))
    batch = bench.scheduler.schedule()
    assert bench.scheduler.abort(sequence.sequence_id, FinishReason.STOP) is None
    assert bench.scheduler.pool.num_used > 0
    updates = bench.scheduler.update(batch, bench.runner.collect(bench.runner.launch(batch)))
    assert updates[0].token_ids == ()
    assert sequence.finish_reason is FinishReason.STOP
    bench.scheduler.check_invariants()
    bench.run()
    assert output(other) == bench.solo(other)


def test_a_deadline_ends_only_what_never_started() -> None:
    bench = make_bench(max_sequences=1)
    running = bench.submit([1], upto(50), deadline_s=1005.0)
    bench.step()
    waiting = bench.submit([2], upto(50), deadline_s=1005.0)
    patient = bench.submit([3], upto(2))
    assert bench.scheduler.expire(1004.9) == []
    assert bench.scheduler.expire(1005.0) == [waiting]
    assert waiting.finish_reason is FinishReason.DEADLINE
    bench.run()
    assert running.num_output_tokens == 50
    assert patient.num_output_tokens == 2


def test_a_scheduler_that_could_run_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_bench(max_sequences=0)


def test_block_tables_cover_the_step_and_no_more() -> None:
    bench = make_bench(step_tokens=6, block_size=4)
    bench.submit(list(range(21)), upto(2))
    lengths = [len(b.sequences[0].block_table) for b in bench.run()]
    assert lengths == [2, 3, 5, 6, 6]
