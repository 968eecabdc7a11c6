"""What a run sends: mixes, arrivals, traces, the sweep."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from appliance.bench.benchmark import sweep
from appliance.bench.soak import Window, find_drifts
from appliance.bench.workload import LengthMix, poisson_times, read_trace
from appliance.errors import BadSetting

MIB = 2**20


def test_a_mix_keeps_its_weights_and_repeats_with_its_seed() -> None:
    mix = LengthMix.parse("128:64@3, 1000:1@1")
    drawn = mix.draw(2000, seed=3)
    assert 0.7 < sum(plan.prompt_tokens == 128 for plan in drawn) / 2000 < 0.8
    assert drawn == mix.draw(2000, seed=3)
    assert drawn != mix.draw(2000, seed=4)


@pytest.mark.parametrize("text", ["", "128", "128:", "0:5", "5:0", "a:b", "1:2@x", "1:2@0", "1:2,,3:4"])
def test_what_is_no_mix_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadSetting, match="--lengths is"):
        LengthMix.parse(text)


def test_arrivals_come_at_random_at_the_rate_asked_for() -> None:
    times = poisson_times(4000, 8.0, seed=1)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert times[0] == 0
    assert mean == pytest.approx(1 / 8, rel=0.05)
    # Of an exponential distribution the deviation is the mean.
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)


def test_a_trace_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(
        '{"at_s": 2, "prompt_tokens": 9, "output_tokens": 3}\n\n'
        '{"at_s": 0.5, "prompt": "two words", "output_tokens": 1}\n'
    )
    first, second = read_trace(file)
    assert (first.prompt, first.prompt_tokens, first.at_s) == ("two words", 2, 0.5)
    assert (second.prompt, second.prompt_tokens, second.output_tokens) == (None, 9, 3)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"at_s": 1, "prompt_tokens": 1}',
        '{"at_s": -1, "prompt_tokens": 1, "output_tokens": 1}',
        '{"at_s": 1, "prompt_tokens": 0, "output_tokens": 1}',
        '{"at_s": "x", "prompt_tokens": 1, "output_tokens": 1}',
    ],
)
def test_a_bad_line_of_a_trace_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(f'{{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1}}\n{line}\n')
    with pytest.raises(BadSetting, match="line 2 of"):
        read_trace(file)


def test_an_empty_or_absent_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("\n")
    for name in ("t", "absent"):
        with pytest.raises(BadSetting, match="trace"):
            read_trace(tmp_path / name)


@pytest.mark.parametrize(
    ("peak", "counts"),
    [(1, (1, 2, 3)), (2, (1, 2, 4, 6)), (8, (1, 2, 4, 8, 16, 24)), (5, (1, 2, 4, 5, 10, 15))],
)
def test_the_sweep_ends_at_three_times_the_peak(peak: int, counts: tuple[int, ...]) -> None:
    assert sweep(peak) == counts


def windows(growth: float, leak_bytes: float) -> list[Window]:
    return [
        Window(
            ttft_s=(0.1 + 0.0004 * (i * 7919 % 11)) * (1 + growth * i / 39),
            tpot_s=0.01 + 0.00003 * (i * 104729 % 13),
            memory_bytes=int(900 * MIB + leak_bytes * i / 39 + (i * 7919 % 5) * MIB),
            num_errors=0,
        )
        for i in range(40)
    ]


def test_a_steady_hour_holds_and_a_slowing_or_leaking_one_drifts() -> None:
    steady = {drift.name: drift.is_drift for drift in find_drifts(windows(0, 0))}
    assert steady == {"TTFT": False, "TPOT": False, "memory": False}
    slowing = {drift.name: drift.is_drift for drift in find_drifts(windows(0.3, 0))}
    assert slowing == {"TTFT": True, "TPOT": False, "memory": False}
    noisy = [
        replace(w, ttft_s=0.1 * (1 + i * 7919 % 11) * (1 + i / 200)) for i, w in enumerate(windows(0, 0))
    ]
    assert find_drifts(noisy)[0].words.startswith("TTFT holds within its noise: +")
    leaking = {drift.name: drift.is_drift for drift in find_drifts(windows(0, 200 * MIB))}
    assert leaking == {"TTFT": False, "TPOT": False, "memory": True}


def test_a_server_that_tells_no_memory_is_judged_by_its_times() -> None:
    blind = [Window(ttft_s=w.ttft_s, tpot_s=w.tpot_s, memory_bytes=None, num_errors=0) for w in windows(0, 0)]
    assert [drift.name for drift in find_drifts(blind)] == ["TTFT", "TPOT"]
    assert find_drifts(blind[:4]) == find_drifts([]) or len(find_drifts(blind[:4])) == 2
