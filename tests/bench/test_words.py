"""The reports: a page that needs nothing else, tables that hold every stage, hostile names made harmless."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import msgspec

from appliance.bench.comparison import compare
from appliance.bench.report import Report, Targets, make_stage
from appliance.bench.svg_plot import Axis, Series, plot
from appliance.bench.words import to_html, to_markdown
from bench.samples import report, stage, timings

HOSTILE = "<script>alert(1)</script>|x"


def two_stages() -> Report:
    return report(stage(1, name="1 client", load=1), stage(2, name="9 clients", load=9, slowdown=3))


def test_the_page_needs_nothing_from_elsewhere_and_its_plots_are_well_formed() -> None:
    text = to_html([two_stages()], compare(two_stages(), two_stages()))
    assert not re.search(r"(?:src|href)=|@import|url\(|<script", text)
    drawings = re.findall(r"<svg.*?</svg>", text)
    assert len(drawings) == 8
    for drawing in drawings:
        ET.fromstring(drawing)
    assert "no difference" in text


def test_names_from_a_server_are_text_in_every_format() -> None:
    hostile = msgspec.structs.replace(two_stages(), model=HOSTILE)
    assert "<script" not in to_html([hostile], ())
    assert to_markdown([hostile], ()).count("\n| 9 clients |") == 1


def test_markdown_has_a_row_a_stage_and_every_row_as_many_cells() -> None:
    lines = [line for line in to_markdown([two_stages()], ()).splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {12}


def test_json_comes_back_equal() -> None:
    assert msgspec.json.decode(msgspec.json.encode(two_stages()), type=Report) == two_stages()


def test_goodput_counts_what_keeps_both_targets_and_did_not_fail() -> None:
    done = timings(1, count=10, noise=0.0)
    slow = timings(1, count=5, noise=0.0, slowdown=2)
    broken = [replace(done[0], error="status 500")]
    targets = Targets(ttft_s=0.06, tpot_s=0.015)
    found = make_stage("x", 1, [[*done, *slow], broken], is_open=False, wall_s=5.0, targets=targets)
    assert (found.good_requests_per_s, found.requests_per_s) == (2.0, 3.0)
    assert (found.num_requests, found.errors) == (16, {"status 500": 1})


def test_a_stage_in_which_everything_failed_is_still_told() -> None:
    broken = [replace(one, error="refused") for one in timings(1, count=3)]
    found = make_stage("x", 1, [broken], is_open=False, wall_s=1.0, targets=Targets())
    text = to_markdown([report(found)], ())
    assert "| x | 0.0 |" in text
    assert to_html([report(found)], ()).count("<svg") == 2


def test_odd_values_do_not_break_a_plot() -> None:
    for points in ([(1, 0)], [(1, 5), (1, 5)], [(0.001, 1e-9), (1e6, 1e9)]):
        for is_log in (False, True):
            axis = Axis(label="<&>", is_log=is_log)
            ET.fromstring(plot("t", axis, axis, [Series(name="s", points=tuple(points))]))
    assert plot("t", Axis(label="x"), Axis(label="y"), [Series(name="s", points=())]) == ""
