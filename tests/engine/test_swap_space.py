"""Preempted sequences keep their blocks in host memory where that is cheaper: the same tokens, less work."""

import pytest

from appliance.engine.batch import Batch, FailureKind, SequenceOutput, StepFailure, StepResult
from appliance.engine.sequence import SamplingParams, Sequence
from engine.builders import Bench, make_bench, output

PROMPT_A, PROMPT_B = list(range(10)), list(range(50, 60))
PARAMS = SamplingParams(max_tokens=20)


def two_that_outgrow_the_pool(**shape: float) -> tuple[Bench, list[Sequence]]:
    """9 blocks of 4 for two sequences of 30 tokens, without a prefix cache to find anything in."""
    bench = make_bench(num_blocks=9, block_size=4, context_length=36, enable_prefix_cache=False, **shape)  # type: ignore[arg-type]
    return bench, [bench.submit(PROMPT_A, PARAMS), bench.submit(PROMPT_B, PARAMS)]


def num_computed(batches: list[Batch]) -> int:
    return sum(batch.num_new_tokens for batch in batches)


def test_a_restored_sequence_computes_nothing_twice_and_ends_as_alone() -> None:
    bench, sequences = two_that_outgrow_the_pool(num_places=8)
    batches = bench.run()
    assert bench.scheduler.num_preemptions > 0
    assert bench.scheduler.swap.num_saved_blocks > 0
    # The last token of each is never computed: nothing follows it.
    assert num_computed(batches) == sum(len(s.token_ids) - 1 for s in sequences)
    assert [output(s) for s in sequences] == [bench.solo(s) for s in sequences]
    assert bench.scheduler.swap.num_used_places == 0


@pytest.mark.parametrize(
    ("num_places", "block_s"), [(8, 100.0), (2, 0.001)], ids=["copies take longer", "too few places"]
)
def test_it_computes_again_where_that_is_cheaper_or_there_is_no_room(num_places: int, block_s: float) -> None:
    bench, sequences = two_that_outgrow_the_pool(num_places=num_places, block_s=block_s)
    batches = bench.run()
    assert bench.scheduler.num_preemptions > 0
    assert bench.scheduler.swap.num_saved_blocks == 0
    assert num_computed(batches) > sum(len(s.token_ids) - 1 for s in sequences)
    assert [output(s) for s in sequences] == [bench.solo(s) for s in sequences]


def until_one_is_saved(bench: Bench) -> None:
    while not bench.scheduler.swap.num_used_places:
        bench.step()


def test_an_abort_while_saved_gives_the_places_back() -> None:
    bench, (stays, leaves) = two_that_outgrow_the_pool(num_places=8)
    until_one_is_saved(bench)
    bench.scheduler.abort(leaves.sequence_id)
    assert bench.scheduler.swap.num_used_places == 0
    bench.scheduler.check_invariants()
    bench.run()
    assert output(stays) == bench.solo(stays)


def test_what_a_failed_step_was_to_save_is_computed_again() -> None:
    bench, (_, second) = two_that_outgrow_the_pool(num_places=8)
    while not bench.scheduler.swap.num_used_places:
        batch = bench.scheduler.schedule(bench.clock())
        if not batch.saves:
            bench.scheduler.update(batch, bench.runner.collect(bench.runner.launch(batch)), bench.clock())
    failure = StepFailure(kind=FailureKind.RUNNER, message="the device failed")
    failed = (SequenceOutput(sequence_id=s.sequence_id, failure=failure) for s in batch.sequences)
    bench.scheduler.update(batch, StepResult(outputs=tuple(failed)), bench.clock())
    assert bench.scheduler.swap.num_used_places == 0
    bench.run()
    assert output(second) == bench.solo(second)


def test_restored_blocks_are_found_by_others() -> None:
    bench = make_bench(num_blocks=9, block_size=4, context_length=36, num_places=8)
    for prompt in (PROMPT_A, PROMPT_B):
        bench.submit(prompt, PARAMS)
    bench.run()
    assert bench.scheduler.swap.num_saved_blocks > 0
    again = bench.submit(PROMPT_B, SamplingParams(max_tokens=2))
    bench.run()
    assert again.num_prefix_hit_tokens == 8
    assert output(again) == bench.solo(again)
