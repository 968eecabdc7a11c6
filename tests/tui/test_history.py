from msgspec.structs import replace

from tui.braille import BLANK, BrailleCanvas
from tui.history import WINDOW_S, History, Moment


def rate(moment: Moment) -> float | None:
    return moment.output_tokens_per_s


def history_of(snapshots, rates: list[float], first_s: float = 1000.0, step_s: float = 0.5) -> History:
    history = History()
    for index, value in enumerate(rates):
        snapshot = snapshots.idle(first_s + index * step_s)
        throughput = replace(snapshot.throughput, output_tokens_per_s=value)
        history = history.extended(replace(snapshot, throughput=throughput))
    return history


def test_history_forgets_what_is_older_than_the_window(snapshots) -> None:
    history = history_of(snapshots, [1.0] * 301)
    assert history.moments[0].at_s == 1150.0 - WINDOW_S
    assert history.moments[-1].at_s == 1150.0


def test_a_restarted_appliance_starts_a_new_history(snapshots) -> None:
    history = history_of(snapshots, [1.0] * 10)
    assert len(history.extended(snapshots.idle(1010.0, pid=4243)).moments) == 1
    assert len(history.extended(snapshots.idle(3.0)).moments) == 1


def test_each_bin_holds_its_largest_value_and_the_newest_is_last(snapshots) -> None:
    values = history_of(snapshots, [1.0, 9.0, 2.0, 3.0]).series(rate, 120)
    assert values[-2:] == [9.0, 3.0]
    assert values[:-2] == [None] * 118


def test_a_drawn_shape_moves_left_without_changing(snapshots) -> None:
    rates = [float(n * 7 % 13) for n in range(120)]
    earlier = history_of(snapshots, rates).series(rate, 60)
    later = history_of(snapshots, [*rates, 0.0, 0.0, 0.0, 0.0]).series(rate, 60)
    assert later[29:-1] == earlier[30:]


def test_a_silence_longer_than_two_seconds_is_a_gap(snapshots) -> None:
    history = history_of(snapshots, [5.0]).extended(snapshots.idle(1010.0))
    values = history.series(rate, 120)
    assert values[-11:] == [5.0, 5.0, 5.0, *[None] * 7, 0.0]


def test_an_empty_history_draws_nothing() -> None:
    assert History().series(rate, 7) == [None] * 7


def test_a_line_climbs_from_corner_to_corner() -> None:
    canvas = BrailleCanvas(2, 1)
    canvas.draw_line([0.0, 1.0, 2.0, 3.0], 3.0, 0)
    assert canvas.rows() == [[("⡠⠊", 0)]]


def test_an_area_fills_down_to_the_edge_and_leaves_gaps_empty() -> None:
    canvas = BrailleCanvas(2, 1)
    canvas.draw_area([1.0, 1.0, None, None], 1.0, 0)
    assert canvas.rows() == [[("⣿", 0), (" ", BLANK)]]


def test_the_higher_layer_colours_a_shared_cell_and_nothing_leaves_the_canvas() -> None:
    canvas = BrailleCanvas(1, 2)
    canvas.draw_line([0.0, 99.0], 1.0, 0)
    canvas.draw_line([-5.0], 1.0, 1)
    assert [[layer for _, layer in row] for row in canvas.rows()] == [[0], [1]]
