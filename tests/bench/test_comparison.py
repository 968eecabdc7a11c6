"""Whether two runs differ: no false alarm on equal ones, a tenth slower is found, chance is told apart."""

import random
from pathlib import Path

import pytest

from appliance.bench.baselines import Baselines
from appliance.bench.comparison import compare, is_slower, summary
from appliance.bench.report import Report, Targets, make_stage
from appliance.bench.request_timing import RequestTiming
from appliance.bench.statistics import mann_whitney, paired_ratio, percentiles, signed_rank, trend
from appliance.errors import BadSetting
from bench.samples import report, stage, timings


def test_equal_runs_say_no_difference() -> None:
    alarms = 0
    for seed in range(40):
        found = compare(report(stage(seed)), report(stage(1000 + seed)), tolerance=0.0)
        alarms += summary(found) != "no difference"
    assert alarms <= 2
    # With the usual tolerance a change must also matter.
    found = [compare(report(stage(s)), report(stage(1000 + s))) for s in range(40)]
    assert {summary(differences) for differences in found} == {"no difference"}


def test_a_tenth_slower_is_found_every_time() -> None:
    for seed in range(40):
        found = compare(report(stage(seed)), report(stage(1000 + seed, slowdown=1.1)))
        assert is_slower(found)
        assert "faster" not in summary(found)


def in_turns(seed: int, *, slowdown: float, moods: float = 0.3) -> tuple[Report, Report]:
    """Two servers in 24 turns on a machine whose speed changes from turn to turn, alike for both."""
    source = random.Random(seed)
    sides: list[list[list[RequestTiming]]] = [[], []]
    for turn in range(24):
        mood = source.lognormvariate(0, moods)
        for side, factor in zip(sides, (1.0, slowdown), strict=True):
            own = source.lognormvariate(0, 0.05)
            side.append(timings(hash((seed, turn, factor)), count=2, slowdown=mood * own * factor))
    first, second = (
        report(make_stage("2 clients", 2, side, is_open=False, wall_s=1.0, targets=Targets()))
        for side in sides
    )
    return first, second


def test_turns_on_an_unsteady_machine_tell_a_tenth_from_nothing() -> None:
    for seed in range(20):
        assert summary(compare(*in_turns(seed, slowdown=1.0), is_paired=True)) == "no difference"
        found = compare(*in_turns(seed, slowdown=1.1), is_paired=True)
        assert is_slower(found)
        assert "faster" not in summary(found)
    # The same samples without their turns do not tell it.
    assert not is_slower(compare(*in_turns(1, slowdown=1.1)))


def test_the_signed_rank_test_agrees_with_counts_by_hand_and_its_own_approximation() -> None:
    assert signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == 2 / 64
    # Of 8 choices of signs, those with a sum of 2 or less: none, {1}, {2}.
    assert signed_rank([1.0, -2.0, 3.0]) == pytest.approx(6 / 8)
    assert signed_rank([1.0, 1.0, 1.0, -1.0]) == pytest.approx(10 / 16)
    assert (signed_rank([]), signed_rank([0.0, 0.0]), signed_rank([2.0])) == (1.0, 1.0, 1.0)
    source = random.Random(1)
    values = [source.gauss(0.3, 1.0) for _ in range(61)]
    assert signed_rank(values) == pytest.approx(signed_rank(values[:60]), abs=0.03)


def test_the_paired_ratio_forgives_a_few_bad_turns() -> None:
    pairs = [(1.0, 1.1)] * 20 + [(1.0, 9.0), (9.0, 1.0)]
    assert paired_ratio(pairs) == pytest.approx(1.1, abs=0.01)


def test_a_faster_run_is_no_failure() -> None:
    found = compare(report(stage(1, slowdown=1.2)), report(stage(2)))
    assert {d.verdict for d in found} == {"faster"}
    assert not is_slower(found)


def test_a_sure_change_within_the_tolerance_is_none() -> None:
    before, after = report(stage(1, noise=0.001)), report(stage(2, noise=0.001, slowdown=1.03))
    assert summary(compare(before, after)) == "no difference"
    assert is_slower(compare(before, after, tolerance=0.01))


def test_few_samples_and_other_stages_are_told() -> None:
    few = compare(report(stage(1, count=7)), report(stage(2, count=7, slowdown=2)))
    assert summary(few).startswith("too few samples")
    none = compare(report(stage(1)), report(stage(1, name="9 clients")))
    assert (none, summary(none)) == ((), "nothing to compare: the runs have no stage in common")


def test_the_rank_test_agrees_with_exact_counts() -> None:
    # Of the 12870 orders of 8 and 8 values the two most extreme have this p-value: 2 / 12870.
    low, high = [float(n) for n in range(8)], [float(n) for n in range(10, 18)]
    assert mann_whitney(low, high) == pytest.approx(2 / 12870, abs=0.001)
    assert mann_whitney(low, low) == 1.0
    assert mann_whitney([1.0] * 9, [1.0] * 9) == 1.0
    assert mann_whitney([], low) == 1.0
    assert mann_whitney(low, high) == pytest.approx(mann_whitney(high, low))


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    source, held = random.Random(5), 0
    for seed in range(100):
        ((_, low, high), *_) = percentiles([source.gauss(10, 1) for _ in range(50)], seed=seed)
        held += low <= 10 <= high
    assert 88 <= held <= 100


def test_percentiles_are_ranks_inside_their_intervals() -> None:
    found = percentiles([float(n) for n in range(1, 101)])
    assert [interval.value for interval in found] == [50, 95, 99]
    assert all(interval.low <= interval.value <= interval.high for interval in found)
    assert percentiles([]) == ()
    assert percentiles([3.0]) == ((3.0, 3.0, 3.0),) * 3


def test_a_trend_is_told_from_noise() -> None:
    source = random.Random(1)
    noise = [source.gauss(0, 1) for _ in range(40)]
    change, p_value = trend([n + 0.2 * i for i, n in enumerate(noise)])
    assert change == pytest.approx(0.2 * 39, rel=0.2)
    assert p_value < 1e-6
    assert trend(noise)[1] > 0.01
    assert trend([1.0, 2.0, 3.0]) == (0.0, 1.0)


def test_a_kept_run_comes_back_equal_and_an_unknown_one_names_the_kept(tmp_path: Path) -> None:
    kept = Baselines(tmp_path / "baselines")
    kept.save("before", report(stage(1)))
    assert kept.load("before") == report(stage(1))
    with pytest.raises(BadSetting, match="no baseline 'b'; kept are: before"):
        kept.load("b")
    with pytest.raises(BadSetting, match="cannot name a baseline"):
        kept.save("../x", report())
    (tmp_path / "baselines" / "bad.json").write_text("{")
    with pytest.raises(BadSetting, match="cannot be read"):
        kept.load("bad")
