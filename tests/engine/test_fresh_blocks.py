"""Blocks whose memory the system has yet to give, against cached ones."""

import sys

import pytest

from appliance.engine.assembly import Policies, make_scheduler
from appliance.engine.block_pool import BlockPool
from appliance.engine.fresh_blocks import FreshBlocks
from appliance.engine.sequence import BlockId, SamplingParams
from engine.builders import Bench, FakeClock, output
from engine.scripted_runner import ScriptedRunner

BLOCK_SIZE, NUM_BLOCKS = 4, 64
TOKEN_S = 0.001


class Memory:
    """Gives memory at a rate that a test sets."""

    def __init__(self, num_committed_blocks: int, commit_block_s: float) -> None:
        self.num_committed_blocks = num_committed_blocks
        self.commit_block_s = commit_block_s


def make_bench(memory: Memory) -> Bench:
    clock = FakeClock()
    scheduler = make_scheduler(
        BlockPool(NUM_BLOCKS, BLOCK_SIZE),
        Policies(),
        max_sequences=4,
        step_tokens=32,
        context_length=128,
        memory=memory,
    )
    runner = ScriptedRunner(
        num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, step_s=0.01, token_s=TOKEN_S, sleep=clock.sleep
    )
    return Bench(scheduler, runner, clock)


def serve(bench: Bench, num_requests: int) -> None:
    """Requests of 40 tokens with nothing in common, one after the other."""
    for i in range(num_requests):
        sequence = bench.submit([1000 * i + j for j in range(32)], SamplingParams(max_tokens=8))
        bench.run()
        assert output(sequence) == bench.solo(sequence)


@pytest.mark.parametrize(("slowness", "is_dear"), [(0.0, False), (0.02, False), (10.0, True)])
def test_cached_blocks_make_room_where_fresh_ones_take_longer_than_computing(slowness: float, is_dear: bool):
    bench = make_bench(Memory(NUM_BLOCKS, 0.0))
    serve(bench, 2)  # for the times of steps to be known, with room for both in what is committed
    pool = bench.scheduler.pool
    assert pool.counters.num_evicted_blocks == 0
    num_touched = NUM_BLOCKS - pool.num_free + 1  # the last one held no full block, and is free again
    memory = Memory(num_touched, slowness * BLOCK_SIZE * TOKEN_S)
    budget = bench.scheduler._budget
    pool.is_dear = FreshBlocks(memory, budget.prompt_s, BLOCK_SIZE).is_dear
    serve(bench, 3)
    assert (pool.counters.num_evicted_blocks > 0) == is_dear
    assert (NUM_BLOCKS - pool.num_free < num_touched) == is_dear


def test_what_runs_takes_fresh_blocks_however_dear_they_are():
    bench = make_bench(Memory(2, 1e3))
    sequences = [
        bench.submit([100 * i + j for j in range(32)], SamplingParams(max_tokens=8)) for i in range(4)
    ]
    bench.run()
    assert all(output(sequence) == bench.solo(sequence) for sequence in sequences)
    assert bench.scheduler.num_preemptions == 0


def test_nothing_is_dear_before_the_times_of_prompts_are_known():
    fresh = FreshBlocks(Memory(2, 1e3), lambda _: None, BLOCK_SIZE)
    assert not fresh.is_dear(BlockId(5))


def test_what_is_committed_is_never_dear():
    fresh = FreshBlocks(Memory(6, 1e3), lambda _: 1e-3, BLOCK_SIZE)
    assert [fresh.is_dear(BlockId(i)) for i in (0, 5, 6, 63)] == [False, False, True, True]
    assert not FreshBlocks(Memory(sys.maxsize, 1e3), lambda _: 1e-3, BLOCK_SIZE).is_dear(BlockId(63))
