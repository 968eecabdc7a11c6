"""What the benchmarks write: verdicts told plainly, hand-written text kept, a plot that is valid SVG."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bars import BARS, judge
from benchmarks.engines import LLAMA_Q4_0, LLAMA_Q4_1, OURS
from benchmarks.quality import AGREEMENT, DIVERGENCE, LOGIT_ERROR, compare
from benchmarks.report import BEGIN, END, ratio_table, write_report
from benchmarks.results import Part, Results

CELL = "batch 1, context 128"


def results_of(ours: list[float], llama_q4_1: list[float], llama_q4_0: list[float]) -> Results:
    results = Results("a machine", {})
    part = results.begin("decode", len(ours))
    for engine, values in ((OURS, ours), (LLAMA_Q4_1, llama_q4_1), (LLAMA_Q4_0, llama_q4_0)):
        for value in values:
            part.add(engine, CELL, value)
    return results


def test_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    verdict = judge(results_of([300.0, 100.0, 700.0], [100.0, 100.0, 200.0], []))[0]
    assert verdict.ratios == [3.0, 1.0, 3.5]
    assert verdict.ratio == 3.0
    assert verdict.text == "pass"


def test_miss_and_absence_are_told() -> None:
    table = ratio_table(judge(results_of([250.0], [100.0], [])))
    first, second = table.splitlines()[2:4]
    assert "**miss**" in first
    assert "2.50 (2.50 to 2.50)" in first
    assert "not measured" in second


def test_bar_that_limits_from_above_passes_below_and_misses_above() -> None:
    bar = next(bar for bar in BARS if bar.measure.startswith("TTFT"))
    for ours, expected in ((32.0, "pass"), (34.0, "**miss**")):
        results = Results("a machine", {})
        part = results.begin("http", 1)
        part.add(*bar.ours, ours)
        part.add(*bar.theirs, 100.0)
        assert judge(results)[BARS.index(bar)].text == expected


def test_report_keeps_what_a_person_wrote_around_it(tmp_path: Path) -> None:
    document, plot = tmp_path / "performance.md", tmp_path / "performance.svg"
    document.write_text(f"# Mine\n\nbefore\n\n{BEGIN}\nold figures\n{END}\n\nafter\n")
    write_report(results_of([300.0], [100.0], [150.0]), document, plot)
    text = document.read_text()
    assert text.startswith(f"# Mine\n\nbefore\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nafter\n")
    assert "old figures" not in text
    write_report(results_of([300.0], [100.0], [150.0]), document, plot)
    assert document.read_text() == text


def test_plot_is_valid_and_its_longest_bar_is_the_fastest(tmp_path: Path) -> None:
    document, plot = tmp_path / "performance.md", tmp_path / "performance.svg"
    write_report(results_of([310.0, 290.0, 300.0], [100.0] * 3, [150.0] * 3), document, plot)
    space = "{http://www.w3.org/2000/svg}"
    bars = [
        float(rect.attrib["width"])
        for rect in ET.parse(plot).getroot().iter(f"{space}rect")
        if rect.attrib["height"] == "16"
    ]
    assert bars == [max(bars), pytest.approx(max(bars) / 3, abs=0.1), pytest.approx(max(bars) / 2, abs=0.1)]
    assert plot.name in document.read_text()


def test_results_survive_a_restart_on_the_same_machine_only(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = Results.load(path)
    results.begin("decode", 1).add(OURS, CELL, 12.5)
    results.save(path)
    assert Results.load(path).part("decode").values(OURS, CELL) == [12.5]
    results.machine = "another machine"
    results.save(path)
    assert Results.load(path).part("decode").values(OURS, CELL) == []


def test_logit_error_is_relative_and_averaged_over_positions() -> None:
    exact = np.array([[3.0, 4.0], [0.0, 2.0]], np.float32)
    part = Part()
    compare(part, OURS, exact, np.array([[3.0, 4.5], [0.0, 2.0]], np.float32))
    assert part.median(OURS, LOGIT_ERROR) == pytest.approx(5.0)
    assert part.median(OURS, AGREEMENT) == 100.0
    compare(part, LLAMA_Q4_1, exact, exact)
    assert part.median(LLAMA_Q4_1, LOGIT_ERROR) == 0.0
    assert part.median(LLAMA_Q4_1, DIVERGENCE) == pytest.approx(0.0, abs=1e-9)
