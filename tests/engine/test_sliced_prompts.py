"""Prompt chunks in slices of layers: what is computed when, and what if one of their sequences ends."""

import pytest

from appliance.engine.batch import FailureKind, PromptSlice, StepFailure
from appliance.engine.sequence import FinishReason, SamplingParams
from appliance.engine.sliced_prompts import SlicedPrompts
from engine.builders import Bench, make_bench, output

LAYERS = 6


def bench_with_a_stream(**shape: object) -> Bench:
    """One stream runs; a third of the layers fits into a step."""
    bench = make_bench(num_layers=LAYERS, slice_share=1 / 3, **shape)
    bench.submit([1, 2, 3], SamplingParams(max_tokens=60))
    bench.step()
    return bench


def layers(piece: PromptSlice | None) -> tuple[int, int] | None:
    return piece and (piece.first_layer, piece.end_layer)


def test_a_prompt_beside_a_stream_takes_some_layers_a_step_and_the_stream_a_token_each() -> None:
    bench = bench_with_a_stream()
    prompt = bench.submit(list(range(20, 40)), SamplingParams(max_tokens=3))
    for expected in ((0, 2), (2, 4), (4, 6)):
        assert prompt.num_computed_tokens == 0
        batch, updates = bench.step()
        assert layers(batch.slice) == expected
        assert [s.num_new_tokens for s in batch.sequences] == [1]
        assert len(updates) == (2 if expected[1] == LAYERS else 1)
    assert prompt.num_computed_tokens == 20
    assert prompt.num_output_tokens == 1
    bench.run()
    assert output(prompt) == bench.solo(prompt)


def test_without_streams_a_prompt_is_computed_whole_and_one_begun_is_ended_at_once() -> None:
    bench = bench_with_a_stream()
    stream = next(bench.scheduler.live_sequences())
    prompt = bench.submit(list(range(20, 40)), SamplingParams(max_tokens=3))
    assert layers(bench.step()[0].slice) == (0, 2)
    bench.scheduler.abort(stream.sequence_id)
    assert layers(bench.step()[0].slice) == (2, 6)
    assert prompt.num_output_tokens == 1
    bench.submit(list(range(50, 60)), SamplingParams(max_tokens=1))
    bench.scheduler.abort(prompt.sequence_id)
    assert bench.step()[0].slice is None


def test_one_that_comes_while_chunks_are_under_way_waits_for_their_end() -> None:
    bench = bench_with_a_stream(step_tokens=16)
    bench.submit(list(range(20, 44)), SamplingParams(max_tokens=3))
    bench.step()
    short = bench.submit([7, 8], SamplingParams(max_tokens=2))
    for _ in range(2):
        bench.step()
        assert short.started_s is None
    batch, _ = bench.step()
    assert short.started_s is not None
    assert batch.slice is not None
    assert {s.sequence_id for s in batch.slice.sequences} > {short.sequence_id}


@pytest.mark.parametrize("when", ["between steps", "in flight", "fails"])
def test_one_that_ends_among_chunks_under_way_gives_its_blocks_back_at_once(when: str) -> None:
    bench = bench_with_a_stream()
    scheduler, runner = bench.scheduler, bench.runner
    gone = bench.submit(list(range(20, 30)), SamplingParams(max_tokens=3))
    stays = bench.submit(list(range(40, 50)), SamplingParams(max_tokens=3))
    bench.step()
    held = scheduler.pool.num_used
    if when == "between steps":
        assert scheduler.abort(gone.sequence_id) is gone
    else:
        batch = scheduler.schedule()
        failure = StepFailure(kind=FailureKind.NOT_FINITE, message="a logit is not finite")
        runner.fail = lambda s: failure if when == "fails" and s.sequence_id == gone.sequence_id else None
        pending = runner.launch(batch)
        if when == "in flight":
            assert scheduler.abort(gone.sequence_id) is None
        updates = scheduler.update(batch, runner.collect(pending))
        assert gone in [update.sequence for update in updates]
    runner.fail = lambda _: None
    assert gone.finish_reason is (FinishReason.ERROR if when == "fails" else FinishReason.ABORT)
    assert scheduler.pool.num_used < held
    assert scheduler.pool.num_cached == 0, "a block was published that was never computed"
    scheduler.check_invariants()
    batch, _ = bench.step()
    assert layers(batch.slice) == (0, 2)
    bench.run()
    assert output(stays) == bench.solo(stays)


def test_steps_get_equal_numbers_of_layers() -> None:
    bench = make_bench()
    bench.submit([1, 2, 3])
    chunks = bench.scheduler.schedule().sequences

    def sizes(num_layers: int, share: float) -> list[int]:
        sliced, found = SlicedPrompts(num_layers), []
        while (piece := sliced.next_slice(chunks, share)) is not None:
            found.append(piece.end_layer - piece.first_layer)
            if piece.is_last:
                break
        return found

    assert sizes(30, 1 / 15) == [2] * 15
    assert sizes(30, 0.25) == [8, 8, 7, 7]
    assert sizes(30, 0.001) == [1] * 30
    assert sizes(30, 0.6) == [15, 15]
    assert sizes(30, 0.95) == []  # fits, as nearly as anybody knows
    assert sizes(0, 0.1) == []  # this device leaves off nowhere
