"""Engine with its own thread: concurrent clients, idleness, stopping, and errors of its own."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from appliance.engine.engine import Engine
from appliance.engine.sequence import FinishReason, SamplingParams
from appliance.engine.stream import FinishEvent, TokenEvent
from appliance.errors import NotReady
from engine.builders import Bench, make_bench, read_all, token_ids


@contextmanager
def running_engine(bench: Bench, *, step_s: float = 0.0) -> Iterator[Engine]:
    """A started engine on the real clock, stopped at the end."""
    bench.runner.step_s = step_s
    bench.runner._sleep = time.sleep
    engine = Engine(bench.runner, bench.scheduler)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
        bench.scheduler.check_invariants()
        assert bench.scheduler.pool.num_used == 0


def small_bench() -> Bench:
    return make_bench(num_blocks=24, block_size=4, max_sequences=8, step_tokens=16, context_length=80)


def test_coroutines_get_what_each_gets_alone_while_others_leave() -> None:
    bench = small_bench()

    async def client(engine: Engine, index: int) -> None:
        rng = random.Random(index)
        prompt = [index % 4] * rng.randrange(1, 20)
        params = SamplingParams(max_tokens=rng.randrange(1, 40))
        leaves_after = rng.choice([None, None, 0, 3])
        got: list[int] = []
        with engine.submit(prompt, params) as stream:
            async for item in stream:
                if isinstance(item, FinishEvent):
                    assert item.reason is FinishReason.LENGTH
                else:
                    got.extend(item.token_ids)
                if leaves_after is not None and len(got) > leaves_after:
                    break
        expected = bench.runner.solo(prompt, params, limit=80)
        assert tuple(got) == expected[: len(got)]
        assert leaves_after is not None or tuple(got) == expected

    async def everyone(engine: Engine) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(64):
                group.create_task(client(engine, index))

    with running_engine(bench) as engine:
        asyncio.run(everyone(engine))


def test_a_plain_thread_reads_a_stream_without_an_event_loop() -> None:
    bench = small_bench()
    with running_engine(bench, step_s=0.001) as engine:
        params = SamplingParams(max_tokens=20)
        stream = engine.submit([1, 2, 3], params)
        events, finish = read_all(stream)
    assert token_ids(events) == bench.runner.solo([1, 2, 3], params, limit=80)
    assert finish.reason is FinishReason.LENGTH


def test_five_hundred_aborts_from_many_threads_leak_nothing() -> None:
    bench = small_bench()
    reasons: list[FinishReason] = []

    def abort_some(engine: Engine, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(50):
            stream = engine.submit([rng.randrange(3)] * rng.randrange(1, 30), SamplingParams())
            if rng.randrange(2):
                assert isinstance(next(stream), TokenEvent)
            stream.cancel()
            reasons.append(read_all(stream)[1].reason)

    with running_engine(bench) as engine:
        threads = [threading.Thread(target=abort_some, args=(engine, seed)) for seed in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.num_live == 0
    assert len(reasons) == 500
    assert set(reasons) <= {FinishReason.ABORT, FinishReason.LENGTH}


def test_submit_abort_and_snapshot_do_not_wait_for_the_step() -> None:
    with running_engine(small_bench(), step_s=0.5) as engine:
        stream = engine.submit([1], SamplingParams(max_tokens=2))
        time.sleep(0.05)  # the first step is under way
        started_s = time.monotonic()
        engine.submit([2], SamplingParams()).cancel()
        assert engine.snapshot().num_running == 1
        assert time.monotonic() - started_s < 0.25
        stream.cancel()
        assert read_all(stream)[1].reason is FinishReason.ABORT


def test_an_idle_engine_uses_no_processor_time() -> None:
    with running_engine(small_bench()) as engine:
        read_all(engine.submit([1], SamplingParams(max_tokens=3)))
        steps, cpu_s = engine.snapshot().num_steps, time.process_time()
        time.sleep(0.3)
        assert time.process_time() - cpu_s < 0.15  # a spinning thread takes 0.3
        assert engine.snapshot().num_steps == steps


def test_stop_lets_running_streams_end_within_their_grace() -> None:
    bench = small_bench()
    with running_engine(bench, step_s=0.002) as engine:
        stream = engine.submit([1], SamplingParams(max_tokens=20))
        started_s = time.monotonic()
        engine.stop(drain_s=10)
        assert time.monotonic() - started_s < 5
        assert read_all(stream)[1].reason is FinishReason.LENGTH
        with pytest.raises(NotReady):
            engine.submit([1], SamplingParams())


def test_stop_aborts_what_outlives_the_grace() -> None:
    with running_engine(small_bench(), step_s=0.05) as engine:
        streams = [engine.submit([i], SamplingParams()) for i in range(12)]
        engine.stop(drain_s=0.1)
        assert {read_all(s)[1].reason for s in streams} == {FinishReason.ABORT}


def test_a_second_stop_cuts_the_grace_short() -> None:
    with running_engine(small_bench(), step_s=0.02) as engine:
        engine.submit([1], SamplingParams())
        patient = threading.Thread(target=engine.stop, args=(30,))
        patient.start()
        time.sleep(0.05)
        engine.stop()
        patient.join(timeout=2)
        assert not patient.is_alive()


def test_an_error_of_the_engine_itself_leaves_no_client_waiting(caplog: pytest.LogCaptureFixture) -> None:
    bench = small_bench()
    engine = Engine(bench.runner, bench.scheduler)
    streams = [engine.submit([i], SamplingParams()) for i in range(3)]

    def broken(*_: object) -> None:
        raise AssertionError("an invariant does not hold")

    bench.scheduler.update = broken  # type: ignore[method-assign, assignment]
    engine.start()
    finishes = [read_all(s)[1] for s in streams]
    assert {f.reason for f in finishes} == {FinishReason.ERROR}
    assert finishes[0].failure is not None
    assert "an invariant does not hold" in finishes[0].failure.message
    with pytest.raises(NotReady, match="error of its own"):
        engine.submit([1], SamplingParams())
    engine.stop(drain_s=5)
    assert "the engine stopped" in caplog.text


def test_a_slow_consumer_gets_everything_at_once() -> None:
    bench = small_bench()
    with running_engine(bench) as engine:
        params = SamplingParams(max_tokens=30)
        stream = engine.submit([4], params)
        while engine.num_live:
            time.sleep(0.001)
        items = list(stream)
    assert len(items) == 2
    assert isinstance(items[0], TokenEvent)
    assert items[0].token_ids == bench.runner.solo([4], params, limit=80)
