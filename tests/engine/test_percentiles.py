"""PercentileWindow: nearest rank, age and bounds."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.percentiles import PercentileWindow
from engine.builders import FakeClock


def test_an_empty_window_has_no_percentiles() -> None:
    assert tuple(PercentileWindow().read()) == (0, None, None, None)


def test_one_value_is_every_percentile() -> None:
    window = PercentileWindow()
    window.add(0.25)
    assert tuple(window.read()) == (1, 0.25, 0.25, 0.25)


def test_a_hundred_values_give_the_ranks_themselves() -> None:
    window = PercentileWindow()
    for value in random.Random(3).sample(range(1, 101), 100):
        window.add(value)
    assert tuple(window.read()) == (100, 50, 95, 99)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=63))
def test_at_least_the_stated_share_of_values_is_not_above(values: list[float]) -> None:
    window = PercentileWindow()
    for value in values:
        window.add(value)
    reading = window.read()
    for percent, at in ((50, reading.p50), (95, reading.p95), (99, reading.p99)):
        assert at in values
        needed = math.ceil(len(values) * percent / 100)
        assert sum(v <= at for v in values) >= needed
        assert sum(v < at for v in values) < needed


def test_values_leave_with_age() -> None:
    clock = FakeClock()
    window = PercentileWindow(window_s=60, clock=clock)
    window.add(9.0)
    clock.now_s += 59
    window.add(1.0)
    assert window.read().num_values == 2
    clock.now_s += 2
    assert tuple(window.read()) == (1, 1.0, 1.0, 1.0)


def test_only_the_newest_values_are_kept() -> None:
    window = PercentileWindow(capacity=7)
    for value in range(100):
        window.add(value)
    assert tuple(window.read()) == (7, 96, 99, 99)
