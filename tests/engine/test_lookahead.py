"""Steps that start before the last one's tokens are known: nobody's tokens, blocks or ends differ for it."""

import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from appliance.engine.batch import LeadingRunner, Runner
from appliance.engine.engine import Engine
from appliance.engine.lookahead import next_tokens
from appliance.engine.sequence import FinishReason, SamplingParams, SequenceId
from appliance.errors import DeviceLost
from engine.builders import Bench, make_bench, make_engine, read_all, token_ids
from engine.leading_runner import LeadingScriptedRunner
from engine.scripted_runner import ScriptedRunner
from engine.test_constraints import Spell
from engine.test_scheduler_machine import FAILURE, Traffic

LONG = SamplingParams(temperature=0.0, max_tokens=9)


def leading_bench(**shape: int) -> tuple[Bench, LeadingScriptedRunner]:
    bench = make_bench(is_leading=True, **shape)
    assert isinstance(bench.runner, LeadingScriptedRunner)
    return bench, bench.runner


def run(engine: Engine) -> None:
    while engine.step():
        pass


def solo(bench: Bench, prompt: list[int], params: SamplingParams = LONG) -> tuple[int, ...]:
    return bench.runner.solo(prompt, params, limit=bench.scheduler.context_length)


def test_only_a_runner_that_can_lead_is_taken_for_one() -> None:
    _, runner = leading_bench()
    assert isinstance(runner, LeadingRunner)
    plain: Runner = ScriptedRunner(num_blocks=1, block_size=1)
    assert not isinstance(plain, LeadingRunner)


def test_a_step_starts_before_the_last_one_is_read() -> None:
    bench, runner = leading_bench()
    engine = make_engine(bench)
    stream = engine.submit([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=3))
    run(engine)
    assert token_ids(read_all(stream)[0]) == solo(bench, [1, 2, 3])[:3]
    assert runner.trace == [
        ("launch", 1),
        ("launch_next", 2),
        ("collect", 1),
        ("launch_next", 3),
        ("collect", 2),
        ("collect", 3),
    ]


def test_every_stream_gets_the_tokens_it_would_get_alone() -> None:
    bench, runner = leading_bench()
    engine = make_engine(bench)
    prompts = ([1, 2, 3], [7], [4] * 11, [9, 9])
    streams = [engine.submit(prompt, LONG) for prompt in prompts]
    run(engine)
    for stream, prompt in zip(streams, prompts, strict=True):
        events, finish = read_all(stream)
        assert token_ids(events) == solo(bench, prompt)
        assert finish.num_output_tokens == 9
    assert runner.num_ahead == 8
    assert bench.scheduler.pool.num_used == 0
    assert len(bench.scheduler.steps) == 0


def test_nothing_comes_after_a_stop_token_though_its_step_was_started() -> None:
    bench, runner = leading_bench()
    runner.replies = [11, 12, 13, 14, 15]
    engine = make_engine(bench)
    params = SamplingParams(temperature=0.0, max_tokens=9, stop_token_ids=frozenset({13}))
    stream = engine.submit([1, 2], params)
    run(engine)
    events, finish = read_all(stream)
    assert token_ids(events) == (11, 12, 13)
    assert events[-1].ends_with_stop_token
    assert finish.reason is FinishReason.STOP
    assert runner.num_steps == 4, "the step after the stop token was under way"
    assert bench.scheduler.pool.num_used == 0


def test_the_last_token_that_is_allowed_starts_no_step_more() -> None:
    bench, runner = leading_bench()
    engine = make_engine(bench)
    engine.submit([1], SamplingParams(temperature=0.0, max_tokens=1))
    run(engine)
    assert runner.trace == [("launch", 1), ("collect", 1)]


def test_who_waits_for_a_place_that_is_free_starts_before_others_go_on() -> None:
    bench, runner = leading_bench(max_sequences=2)
    engine = make_engine(bench)
    first = engine.submit([1, 2], LONG)
    engine.step()
    assert runner.num_ahead == 1
    second = engine.submit([3], LONG)
    engine.step()  # what was started; nothing is started ahead of the newcomer
    assert runner.num_ahead == 1
    engine.step()
    assert [len(batch.sequences) for batch in runner.batches] == [1, 1, 2, 2]
    third = engine.submit([5], LONG)  # no place is free: the others go on
    engine.step()
    assert runner.num_ahead == 3
    run(engine)
    for stream, prompt in ((first, [1, 2]), (second, [3]), (third, [5])):
        assert token_ids(read_all(stream)[0]) == solo(bench, prompt)


def test_who_waits_for_blocks_waits_for_one_that_ends_and_the_others_go_on() -> None:
    bench, runner = leading_bench(num_blocks=6, block_size=4)
    engine = make_engine(bench)
    first = engine.submit([1] * 7, LONG)
    engine.step()
    second = engine.submit([2] * 12, LONG)  # takes three blocks, and two of six are taken, one kept back
    for _ in range(6):
        engine.step()
    assert engine.queue_place(second.sequence_id) is not None
    assert runner.num_ahead >= 5
    num_launches = sum(what == "launch" for what, _ in runner.trace)
    third = engine.submit([3], LONG)  # might have room: it is looked at before another step goes ahead
    engine.step()
    engine.step()
    assert sum(what == "launch" for what, _ in runner.trace) == num_launches + 1
    run(engine)
    for stream, prompt in ((first, [1] * 7), (second, [2] * 12), (third, [3])):
        assert token_ids(read_all(stream)[0]) == solo(bench, prompt)
    assert bench.scheduler.pool.num_used == 0


def test_a_small_one_starts_though_a_large_one_found_no_blocks_and_left() -> None:
    bench, _ = leading_bench(num_blocks=6, block_size=4)
    engine = make_engine(bench)
    engine.submit([1] * 7, replace(LONG, max_tokens=15))
    engine.step()
    large = engine.submit([2] * 12, LONG)
    for _ in range(3):
        engine.step()
    large.cancel()
    engine.step()
    small = engine.submit([3], LONG)
    engine.step()
    engine.step()
    assert engine.queue_place(small.sequence_id) is None, "nobody looked at it"


def test_who_waits_for_blocks_is_looked_at_again_before_long() -> None:
    """A class's window or patience may have made another of the waiting the next one."""
    bench, runner = leading_bench(num_blocks=6, block_size=4)
    engine = make_engine(bench)
    engine.submit([1] * 7, replace(LONG, max_tokens=15))
    engine.step()
    engine.submit([2] * 12, LONG)
    for _ in range(3):
        engine.step()
    num_ahead = runner.num_ahead
    bench.clock.now_s += 1.0
    engine.step()
    assert runner.num_ahead == num_ahead


def test_a_prompt_under_way_keeps_all_steps_in_turn() -> None:
    bench, runner = leading_bench(step_tokens=4)
    engine = make_engine(bench)
    engine.submit(list(range(10)), LONG)
    engine.step()
    engine.step()
    assert runner.num_ahead == 0
    engine.step()  # the rest of the prompt gives the first token
    assert runner.num_ahead == 1


def test_what_a_device_cannot_do_alone_keeps_steps_in_turn() -> None:
    bench, runner = leading_bench()
    engine = make_engine(bench)
    stream = engine.submit([1], SamplingParams(temperature=0.0, max_tokens=4, num_logprobs=1))
    run(engine)
    assert runner.num_ahead == 0
    assert len(token_ids(read_all(stream)[0])) == 4


def test_a_step_that_is_not_started_after_all_is_taken_back() -> None:
    bench, runner = leading_bench()
    runner.refuses_next = True
    engine = make_engine(bench)
    stream = engine.submit([1, 2], LONG)
    run(engine)
    assert token_ids(read_all(stream)[0]) == solo(bench, [1, 2])
    assert runner.num_ahead == 0


@pytest.mark.parametrize("num_steps", [1, 4])
def test_an_abort_ends_a_sequence_that_two_steps_are_computing(num_steps: int) -> None:
    bench, runner = leading_bench()
    engine = make_engine(bench)
    gone, stays = engine.submit([1, 2], LONG), engine.submit([3], LONG)
    for _ in range(num_steps):
        engine.step()
    gone.cancel()
    run(engine)
    assert [len(batch.sequences) for batch in runner.batches][num_steps + 1 :] == [1] * (8 - num_steps)
    assert token_ids(read_all(stays)[0]) == solo(bench, [3])
    events, finish = read_all(gone)
    assert finish.reason is FinishReason.ABORT
    assert token_ids(events) == solo(bench, [1, 2])[:num_steps]
    assert engine.num_live == 0
    assert bench.scheduler.pool.num_used == 0


def test_a_deadline_is_kept_between_steps() -> None:
    bench, runner = leading_bench()
    engine = make_engine(bench)
    stream = engine.submit([1], LONG, end_within_s=5.0)
    engine.step()
    bench.clock.sleep(6.0)
    run(engine)
    events, finish = read_all(stream)
    assert finish.reason is FinishReason.DEADLINE
    assert len(token_ids(events)) == 2, "the step under way counts, and no other is started"
    assert runner.num_ahead == 1


def test_a_lost_device_fails_both_steps_once() -> None:
    bench, runner = leading_bench()
    engine = make_engine(bench)
    stream = engine.submit([1], LONG)
    engine.step()
    runner.next_error = DeviceLost("the GPU stopped")
    engine.step()
    run(engine)
    events, finish = read_all(stream)
    assert token_ids(events) == solo(bench, [1])[:2]
    assert finish.failure is not None
    assert finish.failure.message == "the GPU stopped"
    assert engine.breakage == "the GPU stopped"
    assert bench.scheduler.pool.num_used == 0


def test_a_sequence_that_fails_has_no_part_in_the_step_after() -> None:
    bench, runner = leading_bench()
    engine = make_engine(bench)
    bad, good = engine.submit([1], LONG), engine.submit([2], LONG)
    engine.step()
    runner.fail = lambda s: FAILURE if s.sequence_id == bad.sequence_id else None
    engine.step()  # starts the third step, in which it fails, and reads the second
    run(engine)
    assert read_all(bad)[1].failure == FAILURE
    assert token_ids(read_all(good)[0]) == solo(bench, [2])
    assert bench.scheduler.pool.num_used == 0


def test_a_thread_that_is_stopped_ends_what_two_steps_are_computing() -> None:
    bench, runner = leading_bench(context_length=256)
    runner.step_s = 0.01
    reached = threading.Event()
    runner._sleep = lambda seconds: reached.set() or threading.Event().wait(seconds)
    engine = make_engine(bench)
    stream = engine.submit([1], SamplingParams(temperature=0.0, max_tokens=200))
    engine.start()
    assert reached.wait(10)
    engine.stop()
    events, finish = read_all(stream)
    assert finish.reason is FinishReason.ABORT
    assert token_ids(events) == solo(bench, [1], SamplingParams(max_tokens=200))[: len(events)]
    assert engine.num_live == 0
    assert bench.scheduler.pool.num_used == 0


def test_a_thread_that_is_stopped_between_steps_finishes_the_one_under_way() -> None:
    bench, _ = leading_bench()
    engine = make_engine(bench)
    stream = engine.submit([1], LONG)
    engine.step()
    with engine._changed:  # the thread waits here for the lock, as it does between two steps
        engine.start()
        engine._is_stopping = True
        stream.cancel()
    assert engine._thread is not None
    engine._thread.join(10)
    assert engine.num_live == 0
    assert read_all(stream)[1].reason is FinishReason.ABORT


def test_a_running_sequence_without_a_share_of_the_step_keeps_steps_in_turn() -> None:
    bench, _ = leading_bench()
    sequence = bench.submit([1, 2], LONG)
    bench.scheduler.schedule()
    steps, running = bench.scheduler.steps, dict(bench.scheduler._running)
    assert next_tokens(steps, running, bench.scheduler._tables)
    other = replace(sequence, sequence_id=SequenceId(-1))
    assert not next_tokens(steps, running | {other.sequence_id: other}, bench.scheduler._tables)


def test_a_block_that_others_share_or_a_full_pool_keeps_steps_in_turn() -> None:
    bench, _ = leading_bench(num_blocks=2, block_size=4)
    sequence = bench.submit([1, 2, 3], LONG)
    bench.step()
    batch = bench.scheduler.schedule()  # its fourth token
    pool = bench.scheduler.pool
    rest = pool.allocate(1)
    assert rest is not None
    assert not bench.scheduler.schedule_next(), "there is no block for a fifth"
    pool.free(rest)
    assert bench.scheduler.schedule_next().sequences[0].block_table == (
        *batch.sequences[0].block_table,
        *rest,
    )
    bench.scheduler.steps.withdraw()
    pool.share(sequence.block_table[1:])
    assert not bench.scheduler.schedule_next()
    pool.free(sequence.block_table[1:])


def test_a_grammar_keeps_steps_in_turn() -> None:
    bench, _ = leading_bench()
    bench.submit([1, 2], LONG).constraint = Spell({}, length=9)
    bench.scheduler.schedule()
    assert not bench.scheduler.schedule_next()


class TrafficAhead(Traffic):
    """The same random traffic where any step may be followed by others before its tokens are known."""

    is_leading = True

    @precondition(lambda self: self.bench.scheduler.num_live)
    @rule(
        num_steps=st.integers(1, 8),
        choice=st.integers(0, 99),
        what=st.sampled_from(["nothing", "abort", "late abort", "fail"]),
        when=st.integers(0, 7),
    )
    def steps_ahead(self, num_steps: int, choice: int, what: str, when: int) -> None:
        scheduler, runner = self.bench.scheduler, self.bench.runner
        assert isinstance(runner, LeadingScriptedRunner)
        batch = scheduler.schedule()
        pending = runner.launch(batch)
        for number in range(num_steps):
            chosen = batch.sequences[choice % len(batch.sequences)].sequence_id
            is_now = number == when
            if what == "fail" and is_now:
                runner.fail = lambda s, chosen=chosen: FAILURE if s.sequence_id == chosen else None
            following = scheduler.schedule_next() if number + 1 < num_steps else None
            ahead = runner.launch_next(pending, following) if following else None
            if what == "abort" and is_now:
                scheduler.abort(chosen)
            scheduler.update(batch, runner.collect(pending))
            if what == "late abort" and is_now:
                scheduler.abort(chosen)
            scheduler.check_invariants()
            runner.fail = lambda _: None
            if not following or ahead is None:
                break
            batch, pending = following, ahead
        assert not scheduler.steps


TrafficAhead.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # the machine may be busy with other tests
)
TestTrafficAhead = TrafficAhead.TestCase
