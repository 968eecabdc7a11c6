"""Small runs of the scheduler's scenarios, in virtual time: their bars hold, and the report tells them."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from appliance.engine.assembly import ALL_OFF, Policies
from benchmarks.scheduling.load import bursty, chat, poisson, requests
from benchmarks.scheduling.report import BEGIN, END, write_report
from benchmarks.scheduling.scenarios import (
    Findings,
    classes_at_overload,
    concurrency_in_the_same_memory,
    continuous_against_static,
    lanes_against_fifo,
    scheduler_of,
    three_times_peak,
)
from benchmarks.scheduling.simulation import Simulation, latency_s
from benchmarks.scheduling.step_table import fitted_costs

COSTS = fitted_costs()


@pytest.mark.parametrize(
    ("scenario", "count"),
    [
        (continuous_against_static, 600),
        (lanes_against_fifo, 250),
        (three_times_peak, 600),
        (concurrency_in_the_same_memory, 300),
        (partial(classes_at_overload, num_draws=1), 300),
    ],
)
def test_a_small_run_of_the_scenario_keeps_its_bars(scenario: Callable[..., Findings], count: int) -> None:
    bars, _ = scenario(COSTS, count=count)
    assert all(bar.passes for bar in bars), bars


@pytest.mark.parametrize("policies", [Policies(), ALL_OFF], ids=["on", "off"])
def test_books_balance_after_every_step_and_no_token_is_lost(policies: Policies) -> None:
    arrivals = requests(bursty(random.Random(8), 1.0), chat, 12, seed=9)
    scheduler = scheduler_of(policies, num_blocks=60, max_sequences=8)
    outcome = Simulation(scheduler, COSTS, knows_lengths=False, checks_every_step=True).run(arrivals)
    assert all(sequence.is_finished for sequence in outcome.sequences)
    assert outcome.num_wrong_tokens == 0


def test_streams_beside_a_long_prompt_are_held_at_the_target_that_the_budget_aims_at() -> None:
    ratios, _ = Simulation(scheduler_of(Policies(), num_blocks=2048), COSTS).run_beside(
        4000, num_streams=4, times=1
    )
    settled = sorted(ratios[50:])
    target = Policies().stream_slowdown
    # Pieces are whole tokens, cut off: below the target, by less than one more would take.
    assert 0.9 * target < settled[len(settled) // 2] <= 1.02 * target
    assert settled[int(0.99 * len(settled))] < target + 0.2


def test_the_same_arrivals_end_at_the_same_times() -> None:
    def ends() -> list[float]:
        arrivals = requests(poisson(random.Random(3), 1.0), chat, 20)
        outcome = Simulation(scheduler_of(Policies(), num_blocks=512), COSTS).run(arrivals)
        return [latency_s(sequence) for sequence in outcome.sequences]

    assert ends() == ends()


def test_the_fit_is_near_what_was_measured() -> None:
    assert COSTS.mean_error < 0.15
    assert min(COSTS.step_s, COSTS.prompt_token_s, COSTS.stream_s, COSTS.context_s, COSTS.pair_s) > 0


def test_the_report_keeps_what_stands_around_it(tmp_path: Path) -> None:
    bars, values = lanes_against_fifo(COSTS, count=60)
    document, plot = tmp_path / "performance.md", tmp_path / "scheduling.svg"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    missed = replace(bars[0], passes=False)
    write_report([*bars, missed], {"Latency": values}, COSTS, document, plot)
    text = document.read_text("utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "**miss**" in text
    assert ET.fromstring(plot.read_text("utf-8")).tag.endswith("svg")  # our own
