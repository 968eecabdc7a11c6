import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui import figures


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (None, "   –   "),
        (0.0, "0.00 ms"),
        (0.00421, "4.21 ms"),
        (0.0142, "14.2 ms"),
        (0.142, " 142 ms"),
        (0.99949, " 999 ms"),
        (0.9996, "1.00 s "),
        (2.345, "2.35 s "),
        (63.0, "63.0 s "),
        (999.6, "  17 m "),
    ],
)
def test_latencies_are_milliseconds_below_one_second(value_s: float | None, text: str) -> None:
    assert figures.seconds(value_s) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "   –    "),
        (0, "   0 B  "),
        (1023, "1023 B  "),
        (1024, "1.00 KiB"),
        (1024 * 1024 - 1, "1.00 MiB"),
        (140 * 2**20, " 140 MiB"),
        (int(1.2 * 2**30), "1.20 GiB"),
        (139 * 2**30, " 139 GiB"),
    ],
)
def test_sizes_are_binary_with_three_digits(num_bytes: int | None, text: str) -> None:
    assert figures.byte_count(num_bytes) == text


def test_both_sides_of_a_share_use_the_unit_of_the_whole() -> None:
    assert figures.byte_share(512 * 2**20, 16 * 2**30) == "0.50/16.0 GiB"


@pytest.mark.parametrize(
    ("per_s", "text"),
    [
        (None, "    –"),
        (0.0, "  0.0"),
        (12.34, " 12.3"),
        (99.96, "  100"),
        (1234.4, "1,234"),
        (12_345.0, "12.3k"),
        (1.2e6, "1.20M"),
    ],
)
def test_rates_keep_five_cells(per_s: float | None, text: str) -> None:
    assert figures.rate(per_s) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (-0.1, "0.0 s"),
        (4.24, "4.2 s"),
        (9.96, "9.9 s"),
        (59.99, "59 s"),
        (65.0, "1m 05s"),
        (8000.0, "2h 13m"),
        (4 * 86400 + 5 * 3600.0, "4d 05h"),
        (400 * 86400.0, "400 d"),
    ],
)
def test_ages_name_their_two_largest_units(value_s: float, text: str) -> None:
    assert figures.age(value_s) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, 1.0), (0.142, 0.15), (1.0, 1.0), (1.01, 1.5), (930.0, 1000.0)]
)
def test_an_axis_ends_at_a_round_number(value: float, text: float) -> None:
    assert figures.nice_ceiling(value) == pytest.approx(text)


@given(st.floats(0, 1e8), st.integers(0, 2**54))
def test_no_figure_leaves_its_field(value: float, number: int) -> None:
    assert len(figures.seconds(value)) == figures.SECONDS_WIDTH
    assert len(figures.rate(value)) == figures.RATE_WIDTH
    assert len(figures.byte_count(number)) == figures.BYTES_WIDTH
    assert len(figures.byte_share(number // 2, number)) == 13
    assert len(figures.count(min(number, 10**11))) <= figures.COUNT_WIDTH
    assert len(figures.short_count(min(number, 10**9 - 1))) <= 4
    assert len(figures.age(value)) <= figures.AGE_WIDTH


@given(st.floats(1e-6, 1e9))
def test_an_axis_holds_its_values_and_wastes_at_most_half(value: float) -> None:
    assert value <= figures.nice_ceiling(value) * (1 + 1e-9)
    assert figures.nice_ceiling(value) <= 2 * value
