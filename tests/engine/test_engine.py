"""Engine stepped by hand on a still clock: admission, events, failures, counters."""

import logging

import pytest

from appliance.engine.batch import Batch, FailureKind, StepFailure, StepResult
from appliance.engine.engine import Engine
from appliance.engine.sequence import FinishReason, SamplingParams, SequenceStatus
from appliance.engine.stream import FinishEvent, TokenEvent
from appliance.errors import InvalidRequest, NotReady, PromptTooLong, QueueFull
from engine.builders import Bench, make_bench, make_engine, read_all, token_ids

GREEDY = SamplingParams(temperature=0.0, max_tokens=5)


def run(engine: Engine) -> None:
    while engine.step():
        pass


def expected(bench: Bench, prompt: list[int], params: SamplingParams = GREEDY) -> tuple[int, ...]:
    return bench.runner.solo(prompt, params, limit=bench.scheduler.context_length)


def test_streams_end_with_what_was_asked_and_what_it_took() -> None:
    bench = make_bench()
    engine = make_engine(bench)
    stream = engine.submit([1, 2, 3], GREEDY)
    assert engine.num_live == 1
    run(engine)
    events, finish = read_all(stream)
    assert token_ids(events) == expected(bench, [1, 2, 3])
    assert finish == FinishEvent(
        reason=FinishReason.LENGTH,
        num_prompt_tokens=3,
        num_output_tokens=5,
        num_prefix_hit_tokens=0,
        queue_s=0.0,
    )
    assert engine.num_live == 0
    assert engine.step() is False


def test_each_step_pushes_one_event() -> None:
    bench = make_bench()
    engine = make_engine(bench)
    stream = engine.submit([1, 2, 3], GREEDY)
    seen = []
    for _ in range(5):
        engine.step()
        seen.append(next(stream))
    assert [len(e.token_ids) for e in seen if isinstance(e, TokenEvent)] == [1] * 5


def test_the_stop_token_is_flagged_in_its_event() -> None:
    bench = make_bench()
    bench.runner.replies = [11, 12, 13]
    engine = make_engine(bench)
    stream = engine.submit([1], SamplingParams(stop_token_ids=frozenset({13})))
    run(engine)
    events, finish = read_all(stream)
    assert [e.visible_token_ids for e in events] == [(11, 12)]
    assert (finish.reason, finish.num_output_tokens) == (FinishReason.STOP, 3)


def test_logprobs_and_hidden_states_come_with_their_tokens() -> None:
    bench = make_bench()
    engine = make_engine(bench)
    stream = engine.submit([1], SamplingParams(max_tokens=3, num_logprobs=2, wants_hidden_state=True))
    run(engine)
    (event,), _ = read_all(stream)
    assert event.logprobs is not None
    assert [len(item.top) for item in event.logprobs] == [2, 2, 2]
    assert event.hidden_state is not None
    assert event.hidden_state[1] == event.token_ids[-1]


def test_time_in_the_queue_is_from_arrival_to_the_first_step() -> None:
    bench = make_bench(max_sequences=1)
    bench.runner.step_s = 2.0
    engine = make_engine(bench)
    first, second = engine.submit([1], GREEDY), engine.submit([2], GREEDY)
    run(engine)
    assert read_all(first)[1].queue_s == 0.0
    assert read_all(second)[1].queue_s == 10.0


def test_refusals_name_the_limit() -> None:
    bench = make_bench(context_length=20)
    engine = make_engine(bench)
    with pytest.raises(InvalidRequest, match="empty"):
        engine.submit([], GREEDY)
    with pytest.raises(PromptTooLong, match="25 tokens"):
        engine.submit([1] * 25, GREEDY)
    assert engine.num_live == 0


def test_the_queue_is_bounded_beyond_the_places_that_are_open() -> None:
    bench = make_bench(max_sequences=3)
    engine = make_engine(bench, queue_limit=2)
    streams = [engine.submit([i], GREEDY) for i in range(5)]
    with pytest.raises(QueueFull, match="5 requests are waiting and the queue holds 2") as refused:
        engine.submit([9], GREEDY)
    assert refused.value.retry_after_s == 30
    engine.step()
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        engine.submit([9], GREEDY)
    run(engine)
    assert all(read_all(s)[1].reason is FinishReason.LENGTH for s in streams)
    assert engine.snapshot().num_rejected == 2


def test_a_queue_of_none_still_serves_as_many_as_run_at_once() -> None:
    engine = make_engine(make_bench(max_sequences=2), queue_limit=0)
    engine.submit([1], GREEDY)
    engine.submit([2], GREEDY)
    with pytest.raises(QueueFull):
        engine.submit([3], GREEDY)


def test_no_place_is_open_while_blocks_are_short() -> None:
    bench = make_bench(num_blocks=5, block_size=4, context_length=20)
    engine = make_engine(bench, queue_limit=1)
    engine.submit(list(range(13)), SamplingParams(max_tokens=7))
    engine.step()
    engine.submit(list(range(50, 60)), GREEDY)
    engine.step()
    with pytest.raises(QueueFull):
        engine.submit([1], GREEDY)
    run(engine)


def test_a_refused_client_is_told_when_a_place_should_open() -> None:
    bench = make_bench(max_sequences=1)
    bench.runner.step_s = 1.5
    engine = make_engine(bench, queue_limit=1)
    for index in range(3):
        engine.submit([index], SamplingParams(max_tokens=2))
        run(engine)
    engine.submit([7], GREEDY)
    engine.step()
    engine.submit([8], GREEDY)
    with pytest.raises(QueueFull) as refused:
        engine.submit([9], GREEDY)
    assert refused.value.retry_after_s == 4  # three ends in 10.5 s


def test_a_deadline_ends_a_sequence_that_never_started() -> None:
    bench = make_bench(max_sequences=1)
    bench.runner.step_s = 1.0
    engine = make_engine(bench)
    first = engine.submit([1], GREEDY, deadline_s=2.0)
    late = engine.submit([2], GREEDY, deadline_s=2.0)
    run(engine)
    assert read_all(first)[1].reason is FinishReason.LENGTH
    events, finish = read_all(late)
    assert events == []
    assert (finish.reason, finish.queue_s) == (FinishReason.DEADLINE, 2.0)


def test_a_failure_of_one_sequence_leaves_the_others_alone() -> None:
    bench = make_bench()
    engine = make_engine(bench)
    bad, good = engine.submit([1], GREEDY), engine.submit([2], GREEDY)
    failure = StepFailure(kind=FailureKind.OUT_OF_MEMORY, message="no room for 7 GiB")
    engine.step()
    bench.runner.fail = lambda s: failure if s.sequence_id == bad.sequence_id else None
    run(engine)
    events, finish = read_all(bad)
    assert len(token_ids(events)) == 1
    assert (finish.reason, finish.failure) == (FinishReason.ERROR, failure)
    assert token_ids(read_all(good)[0]) == expected(bench, [2])


def test_a_runner_that_raises_fails_its_step_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    bench = make_bench()
    engine = make_engine(bench)
    for index in range(30):
        bench.runner.error = RuntimeError("device lost")
        stream = engine.submit([index], GREEDY)
        with caplog.at_level(logging.CRITICAL):
            run(engine)
        finish = read_all(stream)[1]
        assert finish.reason is FinishReason.ERROR
        assert finish.failure == StepFailure(kind=FailureKind.RUNNER, message="RuntimeError: device lost")
    bench.runner.error = None
    stream = engine.submit([5], GREEDY)
    run(engine)
    assert token_ids(read_all(stream)[0]) == expected(bench, [5])
    assert engine.snapshot().num_failed == 30
    bench.scheduler.check_invariants()


def test_repeated_failures_are_logged_with_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    bench = make_bench()
    engine = make_engine(bench)
    bench.runner.error = RuntimeError("device lost")
    for index in range(3):
        engine.submit([index], GREEDY)
        run(engine)
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False]


@pytest.mark.parametrize("keep", [0, 1])
def test_a_runner_that_forgets_outputs_fails_its_step(keep: int) -> None:
    bench = make_bench()
    collect = bench.runner.collect
    bench.runner.collect = (
        lambda pending: StepResult(  # type: ignore[method-assign]
            outputs=collect(pending).outputs[:keep]
        )
    )
    engine = make_engine(bench)
    streams = [engine.submit([1], GREEDY), engine.submit([2], GREEDY)]
    run(engine)
    assert [read_all(s)[1].reason for s in streams] == [FinishReason.ERROR] * 2


def test_abort_ends_the_stream_and_frees_the_blocks() -> None:
    bench = make_bench(max_sequences=1)
    engine = make_engine(bench)
    running, waiting = engine.submit([1], GREEDY), engine.submit([2], GREEDY)
    engine.step()
    running.cancel()
    waiting.cancel()
    waiting.cancel()
    events, finish = read_all(running)
    assert len(token_ids(events)) == 1
    assert (finish.reason, finish.num_output_tokens) == (FinishReason.ABORT, 1)
    assert read_all(waiting)[1].reason is FinishReason.ABORT
    snapshot = engine.snapshot()
    assert (snapshot.num_aborted, snapshot.num_used_blocks, engine.num_live) == (2, 0, 0)


def test_a_consumer_that_saw_its_stop_string_counts_as_finished() -> None:
    engine = make_engine(make_bench())
    stream = engine.submit([1], GREEDY)
    engine.step()
    stream.cancel(FinishReason.STOP)
    assert read_all(stream)[1].reason is FinishReason.STOP
    assert engine.snapshot().num_finished == 1


def test_five_hundred_aborts_at_any_moment_leak_nothing() -> None:
    bench = make_bench(num_blocks=16, block_size=4, context_length=60)
    engine = make_engine(bench)
    launch = bench.runner.launch
    for index in range(500):
        stream = engine.submit([index % 7] * (1 + index % 40), SamplingParams())
        for _ in range(index % 4):
            engine.step()
        if index % 2:
            bench.runner.launch = lambda batch, s=stream: (s.cancel(), launch(batch))[1]  # type: ignore[method-assign]
            engine.step()
            bench.runner.launch = launch  # type: ignore[method-assign]
        stream.cancel()
        assert read_all(stream)[1].reason in (FinishReason.ABORT, FinishReason.LENGTH)
    bench.scheduler.check_invariants()
    snapshot = engine.snapshot()
    assert snapshot.num_used_blocks == 0
    assert snapshot.num_finished + snapshot.num_aborted == 500
    assert engine.num_live == 0


def test_thirty_two_streams_get_what_each_gets_alone() -> None:
    bench = make_bench(num_blocks=40, block_size=4, max_sequences=16, step_tokens=24, context_length=100)
    engine = make_engine(bench)
    work = []
    for index in range(32):
        prompt = [index % 3] * 9 + list(range(index))
        params = SamplingParams(max_tokens=1 + 3 * index)
        work.append((engine.submit(prompt, params), prompt, params))
    run(engine)
    for stream, prompt, params in work:
        assert token_ids(read_all(stream)[0]) == expected(bench, prompt, params)
    assert engine.snapshot().num_preemptions > 0
    assert engine.snapshot().num_prefix_hit_tokens > 0


def test_a_salt_keeps_prompts_apart() -> None:
    bench = make_bench()
    engine = make_engine(bench)
    hits = []
    for salt in ("a", "a", "b", ""):
        stream = engine.submit(list(range(20)), GREEDY, cache_salt=salt)
        run(engine)
        hits.append(read_all(stream)[1].num_prefix_hit_tokens)
    assert hits == [0, 16, 0, 0]


def test_draining_takes_nothing_new_and_stopping_ends_the_rest() -> None:
    engine = make_engine(make_bench())
    stream = engine.submit([1], GREEDY)
    assert engine.refusal is None
    engine.drain()
    assert engine.refusal is not None
    with pytest.raises(NotReady, match="stopping"):
        engine.submit([2], GREEDY)
    engine.stop()
    assert read_all(stream)[1].reason is FinishReason.ABORT


def test_the_snapshot_tells_counts_rates_and_sequences() -> None:
    bench = make_bench(max_sequences=1)
    bench.runner.step_s = 0.5
    engine = make_engine(bench)
    engine.submit(list(range(9)), SamplingParams(max_tokens=50))
    engine.submit([1, 2], GREEDY)
    for _ in range(4):
        engine.step()
    snapshot = engine.snapshot()
    running, waiting = snapshot.sequences
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.num_steps) == (1, 1, 4)
    assert (snapshot.num_prompt_tokens, snapshot.num_output_tokens) == (9, 4)
    assert snapshot.prompt_tokens_per_s == pytest.approx(9 / 2)
    assert snapshot.output_tokens_per_s == pytest.approx(4 / 2)
    assert (snapshot.num_blocks, snapshot.block_size, snapshot.num_used_blocks) == (64, 4, 3)
    assert (running.status, running.age_s, running.num_computed_tokens) == (SequenceStatus.RUNNING, 2.0, 12)
    assert running.output_tokens_per_s == pytest.approx(2.0)
    assert (waiting.status, waiting.output_tokens_per_s) == (SequenceStatus.WAITING, None)


def test_prompt_tokens_per_second_leave_out_prefix_hits() -> None:
    bench = make_bench()
    bench.runner.step_s = 1.0
    engine = make_engine(bench)
    batches: list[Batch] = []
    for _ in range(2):
        engine.submit(list(range(21)), SamplingParams(max_tokens=1))
        run(engine)
    batches.extend(bench.runner.batches)
    assert [b.num_new_tokens for b in batches] == [21, 1]
    assert engine.snapshot().prompt_tokens_per_s == pytest.approx(22 / 2)
    assert engine.snapshot().num_prompt_tokens == 42


def test_a_stream_that_nobody_reads_ends_at_its_bound_and_no_other_does() -> None:
    bench = make_bench()
    engine = make_engine(bench, most_unread=10)
    params = SamplingParams(max_tokens=60)
    unread, read = engine.submit([1, 2], params), engine.submit([3, 4], params)
    received: list[int] = []
    while engine.step():
        bench.scheduler.check_invariants()
        event = next(read)
        received.extend(event.token_ids if isinstance(event, TokenEvent) else ())
    assert tuple(received) == expected(bench, [3, 4], params)
    events, finish = read_all(unread)
    assert token_ids(events) == expected(bench, [1, 2], params)[:11]
    assert (finish.reason, finish.num_output_tokens) == (FinishReason.UNREAD, 11)
    snapshot = engine.snapshot()
    assert (snapshot.num_used_blocks, snapshot.num_aborted, snapshot.num_finished) == (0, 1, 1)


def test_the_snapshot_tells_what_the_pool_holds_wastes_refused_and_evicted() -> None:
    bench = make_bench(num_blocks=8, block_size=4)
    engine = make_engine(bench)
    assert engine.snapshot().allocation_success is None
    assert engine.snapshot().prefix_hit_rate is None
    for _ in range(2):
        engine.submit(list(range(9)), SamplingParams(max_tokens=1))
        run(engine)
    snapshot = engine.snapshot()
    assert (snapshot.num_used_blocks, snapshot.num_cached_blocks, snapshot.num_free_blocks) == (0, 2, 6)
    assert snapshot.prefix_hit_rate == 8 / 18
    assert (snapshot.num_wasted_slots, snapshot.num_evicted_blocks) == (0, 0)
    engine.submit(list(range(100, 109)), SamplingParams(max_tokens=20))
    engine.step()
    assert engine.snapshot().num_wasted_slots == 2  # three blocks for nine tokens and one to come
    engine.submit(list(range(200, 210)), SamplingParams(max_tokens=20))
    run(engine)
    snapshot = engine.snapshot()
    assert snapshot.num_evicted_blocks >= 2
    assert snapshot.num_refused_allocations == snapshot.num_preemptions > 0
    assert snapshot.allocation_success == 1 - snapshot.num_refused_allocations / snapshot.num_allocations
