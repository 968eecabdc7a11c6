"""What the engine promises a class and a request: its own queue, an end in time, a place in the queue."""

import pytest

from appliance.engine.sequence import FinishReason, SamplingParams, ServiceClass
from appliance.engine.waiting_queue import QueuePlace
from appliance.errors import QueueFull
from engine.builders import make_bench, make_engine, read_all, token_ids


def upto(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens)


def test_a_class_cannot_fill_the_queue_of_another() -> None:
    bench = make_bench(max_sequences=1)
    engine = make_engine(bench, queue_limit=1)
    engine.submit([1, 2], upto(9), service_class=ServiceClass.BRONZE)
    engine.step()
    engine.submit([1, 2], upto(9), service_class=ServiceClass.BRONZE)
    with pytest.raises(QueueFull):
        engine.submit([1, 2], upto(9), service_class=ServiceClass.BRONZE)
    engine.submit([1, 2], upto(9), service_class=ServiceClass.GOLD)
    gold, _, bronze = engine.snapshot().classes
    assert (gold.num_running, gold.num_waiting_short, gold.num_refused) == (0, 1, 0)
    assert (bronze.num_running, bronze.num_waiting_short, bronze.num_refused) == (1, 1, 1)


def test_a_request_that_is_not_done_in_time_ends_with_the_tokens_so_far() -> None:
    bench = make_bench()
    engine = make_engine(bench)
    stream = engine.submit([1, 2], upto(50), end_within_s=5.0)
    for _ in range(4):
        engine.step()
        bench.clock.sleep(1.0)
    bench.clock.sleep(1.0)
    assert not engine.step()
    events, finish = read_all(stream)
    assert finish.reason is FinishReason.DEADLINE
    assert finish.num_output_tokens == len(token_ids(events)) == 4
    assert engine.snapshot().num_used_blocks == 0


def test_a_waiting_request_knows_its_place_and_a_running_one_has_none() -> None:
    engine = make_engine(make_bench(max_sequences=1))
    streams = [engine.submit([1, 2], upto(9)) for _ in range(3)]
    engine.step()
    assert engine.queue_place(streams[0].sequence_id) is None
    assert engine.queue_place(streams[2].sequence_id) == QueuePlace(position=2, total=2)
