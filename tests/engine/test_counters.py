"""Rates over the last seconds, and the estimate that a refused client is given."""

import pytest

from appliance.engine.counters import Counters, RateWindow
from appliance.engine.sequence import FinishReason, SamplingParams, Sequence, SequenceId, ServiceClass


def ended(reason: FinishReason, *, arrival_s: float, started_s: float | None = None) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(1),
        token_ids=[1],
        num_prompt_tokens=1,
        params=SamplingParams(),
        max_output_tokens=5,
        arrival_s=arrival_s,
        started_s=started_s,
        finish_reason=reason,
    )


def test_a_steady_rate_is_read_as_it_is() -> None:
    window = RateWindow(5.0)
    for step in range(1000):
        window.add(3, start_s=step / 10, end_s=(step + 1) / 10)
    assert window.per_s(100.0) == pytest.approx(30, rel=0.06)


def test_the_first_second_is_not_diluted_by_the_window() -> None:
    window = RateWindow(5.0)
    for step in range(10):
        window.add(3, start_s=step / 10, end_s=(step + 1) / 10)
    assert window.per_s(1.0) == pytest.approx(30)


def test_one_long_step_counts_over_the_time_it_took() -> None:
    window = RateWindow(5.0)
    window.add(512, start_s=100.0, end_s=120.0)
    assert window.per_s(120.0) == pytest.approx(512 / 20)


def test_a_rate_falls_to_nothing_when_idle() -> None:
    window = RateWindow(5.0)
    window.add(50, start_s=10.0, end_s=11.0)
    assert window.per_s(13.0) == pytest.approx(50 / 3)
    assert window.per_s(17.0) == 0.0


def test_memory_is_bounded_by_the_window() -> None:
    window = RateWindow(5.0)
    for step in range(10_000):
        window.add(1, start_s=step / 100, end_s=(step + 1) / 100)
    assert len(window._buckets) <= 22


@pytest.mark.parametrize(
    ("reason", "counter"),
    [
        (FinishReason.STOP, "num_finished"),
        (FinishReason.LENGTH, "num_finished"),
        (FinishReason.ABORT, "num_aborted"),
        (FinishReason.ERROR, "num_failed"),
        (FinishReason.DEADLINE, "num_rejected"),
    ],
)
def test_each_end_is_counted_where_it_belongs(reason: FinishReason, counter: str) -> None:
    counters = Counters()
    counters.count_end(ended(reason, arrival_s=1.0), 2.0)
    names = ("num_finished", "num_aborted", "num_failed", "num_rejected")
    assert {name: getattr(counters, name) for name in names} == {n: int(n == counter) for n in names}


def test_the_time_to_retry_follows_how_often_sequences_end() -> None:
    counters = Counters()
    assert counters.retry_after_s(ServiceClass.SILVER, 3, 50.0) == 30
    for index in range(4):
        now_s = 100.0 + 7 * index
        counters.count_end(ended(FinishReason.STOP, arrival_s=now_s - 9, started_s=now_s - 7), now_s)
    assert counters.retry_after_s(ServiceClass.SILVER, 3, 121.0) == 7


def test_one_very_long_sequence_does_not_hide_that_others_end_often() -> None:
    counters = Counters()
    counters.count_end(ended(FinishReason.STOP, arrival_s=0.0, started_s=0.0), 1000.0)
    for index in range(60):
        now_s = 1000.0 + index / 2
        counters.count_end(ended(FinishReason.STOP, arrival_s=now_s - 1, started_s=now_s - 1), now_s)
    assert counters.retry_after_s(ServiceClass.SILVER, 3, 1029.5) == 1
