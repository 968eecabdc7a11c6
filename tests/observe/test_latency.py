"""Latency windows and one sequence's clock."""

import pytest

from appliance.observe.latency import LatencyRecorder, SequenceTiming


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def timing_of(clock: Clock) -> tuple[LatencyRecorder, SequenceTiming]:
    recorder = LatencyRecorder(window_s=60, clock=clock)
    return recorder, SequenceTiming(recorder, received_s=clock())


def test_an_untouched_recorder_has_no_percentiles() -> None:
    reading = LatencyRecorder().read()
    for percentiles in (reading.ttft, reading.tpot, reading.itl, reading.queue):
        assert tuple(percentiles) == (0, None, None, None)


def test_first_token_counts_when_it_leaves_and_only_once() -> None:
    clock = Clock()
    recorder, timing = timing_of(clock)
    timing.first_token_out()
    assert timing.ttft_s is None
    clock.now_s += 0.2
    timing.tokens_arrived(1)
    clock.now_s += 0.1
    timing.first_token_out()
    clock.now_s += 5
    timing.first_token_out()
    assert timing.ttft_s == pytest.approx(0.3)
    assert recorder.read().ttft[0] == 1


def test_gaps_and_their_mean() -> None:
    clock = Clock()
    recorder, timing = timing_of(clock)
    for gap_s in (9.0, 0.1, 0.3):
        clock.now_s += gap_s
        timing.tokens_arrived(1)
    assert timing.tpot_s == pytest.approx(0.2)
    timing.finished(queue_s=0.05)
    reading = recorder.read()
    assert reading.itl[0] == 2
    assert reading.itl.p50 == pytest.approx(0.1)
    assert reading.itl.p99 == pytest.approx(0.3)
    assert reading.tpot.p50 == pytest.approx(0.2)
    assert reading.queue.p50 == 0.05


def test_tokens_of_one_step_are_one_gap_and_zeros() -> None:
    clock = Clock()
    recorder, timing = timing_of(clock)
    timing.tokens_arrived(3)
    clock.now_s += 1
    timing.tokens_arrived(2)
    assert recorder.read().itl[0] == 4
    assert timing.tpot_s == pytest.approx(0.25)


def test_one_token_has_no_mean_gap() -> None:
    recorder, timing = timing_of(Clock())
    timing.tokens_arrived(1)
    timing.finished(queue_s=None)
    reading = recorder.read()
    assert reading.tpot[0] == reading.queue[0] == 0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    clock = Clock()
    recorder, _ = timing_of(clock)
    recorder.add_ttft(1.0)
    clock.now_s += 61
    recorder.add_ttft(3.0)
    assert recorder.read().ttft[0] == 1
    assert recorder.read().ttft.p50 == 3.0
