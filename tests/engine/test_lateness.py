"""Who is late: told once, at its time, and not after it started or ended."""

from appliance.engine.lateness import Lateness
from appliance.engine.sequence import SamplingParams, Sequence, SequenceId


def sequence(number: int, *, deadline_s: float | None = None, end_by_s: float | None = None) -> Sequence:
    return Sequence(
        sequence_id=SequenceId(number),
        token_ids=[1],
        num_prompt_tokens=1,
        params=SamplingParams(),
        max_output_tokens=8,
        arrival_s=0.0,
        deadline_s=deadline_s,
        end_by_s=end_by_s,
    )


def test_each_is_told_at_its_time_and_once() -> None:
    lateness = Lateness()
    second, first = sequence(1, deadline_s=7.0), sequence(2, end_by_s=5.0)
    for each in (second, first, sequence(3)):
        lateness.watch(each)
    assert lateness.late(4.9) == []
    assert lateness.late(5.0) == [first]
    assert lateness.late(6.9) == []
    assert lateness.late(100.0) == [second]


def test_one_that_started_may_still_be_late_to_end() -> None:
    lateness = Lateness()
    started = sequence(1, deadline_s=3.0, end_by_s=9.0)
    lateness.watch(started)
    started.started_s = 1.0
    assert lateness.late(4.0) == []
    assert lateness.late(9.0) == [started]


def test_both_times_past_at_once_tell_it_once_and_an_ended_one_never() -> None:
    lateness = Lateness()
    late, ended = sequence(1, deadline_s=1.0, end_by_s=2.0), sequence(2, end_by_s=2.0)
    lateness.watch(late)
    lateness.watch(ended)
    lateness.ended(ended)
    assert lateness.late(3.0) == [late]
