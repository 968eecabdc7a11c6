"""A soak told to people: what drifted, and each window as a row and as plots. Computes nothing."""

from collections.abc import Sequence

from appliance.bench.html_page import page, plots, table
from appliance.bench.soak import Drift, Window
from appliance.bench.svg_plot import Axis, Series, plot
from appliance.bench.words import markdown_table

_HEAD = ("window", "TTFT p50, ms", "TPOT p50, ms", "memory, MiB", "errors")


def soak_rows(windows: Sequence[Window]) -> list[tuple[str, ...]]:
    """Return one row a window below the heading; a dash where there is no figure."""
    return [_HEAD, *(_row(number, window) for number, window in enumerate(windows, start=1))]


def soak_markdown(lead: str, windows: Sequence[Window], drifts: Sequence[Drift]) -> str:
    verdicts = "\n".join(f"- {drift.words} (p = {drift.p_value:.2g})" for drift in drifts)
    return "\n\n".join(["# Soak", lead, verdicts, markdown_table(soak_rows(windows))]) + "\n"


def soak_html(lead: str, windows: Sequence[Window], drifts: Sequence[Drift]) -> str:
    verdicts = [("quantity", "verdict", "p"), *((d.name, d.words, f"{d.p_value:.2g}") for d in drifts)]
    sections = [table(verdicts), plots(_plots(windows)), table(soak_rows(windows))]
    return page("Soak", lead, sections)


def _row(number: int, window: Window) -> tuple[str, ...]:
    figures = (
        _scaled(window.ttft_s, 1e3),
        _scaled(window.tpot_s, 1e3),
        _scaled(window.resident_bytes, 2**-20),
    )
    cells = ("-" if figure is None else f"{figure:.1f}" for figure in figures)
    return (str(number), *cells, str(window.num_errors))


def _plots(windows: Sequence[Window]) -> list[str]:
    columns = (
        ("Time to first token", "ms", [_scaled(w.ttft_s, 1e3) for w in windows]),
        ("Time per output token", "ms", [_scaled(w.tpot_s, 1e3) for w in windows]),
        ("Memory of the server", "MiB", [_scaled(w.resident_bytes, 2**-20) for w in windows]),
    )
    drawn = []
    for title, unit, column in columns:
        points = tuple((float(n), value) for n, value in enumerate(column, start=1) if value is not None)
        if points:
            series = [Series(name="median", points=points)]
            drawn.append(plot(title, Axis(label="window"), Axis(label=unit), series))
    return drawn


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
