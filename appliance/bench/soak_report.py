"""A soak told to people: what drifted, and each window as a row and as plots. Computes nothing."""

from collections.abc import Sequence
from html import escape

from appliance.bench.comparison import Difference, summary
from appliance.bench.html_page import page, plots, table
from appliance.bench.report import Report
from appliance.bench.soak import Drift, Soaked, Window
from appliance.bench.svg_plot import Axis, Series, plot
from appliance.bench.words import difference_rows, lead, markdown_table, report_rows

_HEAD = ("window", "TTFT p50, ms", "TPOT p50, ms", "memory, MiB", "errors")


def soak_rows(windows: Sequence[Window]) -> list[tuple[str, ...]]:
    """Return one row a window below the heading; a dash where there is no figure."""
    return [_HEAD, *(_row(number, window) for number, window in enumerate(windows, start=1))]


def soak_markdown(
    reports: Sequence[Report], differences: Sequence[Difference], soaked: Sequence[Soaked]
) -> str:
    parts = ["# Soak"]
    for report, one in zip(reports, soaked, strict=True):
        parts += [f"## {report.model} at {report.url}: {one.verdict}", lead(report)]
        if one.drifts:
            parts.append("\n".join(f"- {drift.words} (p = {drift.p_value:.2g})" for drift in one.drifts))
        parts += [markdown_table(report_rows(report)), markdown_table(soak_rows(one.windows))]
    if differences:
        parts += [f"## Compared: {summary(differences)}", markdown_table(difference_rows(differences))]
    return "\n\n".join(parts) + "\n"


def soak_html(reports: Sequence[Report], differences: Sequence[Difference], soaked: Sequence[Soaked]) -> str:
    sections = []
    for report, one in zip(reports, soaked, strict=True):
        sections.append(f"<h2>{escape(f'{report.model} at {report.url}: {one.verdict}')}</h2>")
        sections += [table(_drift_rows(one.drifts)), table(report_rows(report)), plots(_plots(one.windows))]
        sections.append(table(soak_rows(one.windows)))
    if differences:
        sections += [f"<h2>Compared: {summary(differences)}</h2>", table(difference_rows(differences))]
    return page("Soak", " ".join(map(lead, reports)), sections)


def _drift_rows(drifts: Sequence[Drift]) -> list[tuple[str, ...]]:
    return [("quantity", "over the run", "p"), *((d.name, d.words, f"{d.p_value:.2g}") for d in drifts)]


def _row(number: int, window: Window) -> tuple[str, ...]:
    figures = (
        _scaled(window.ttft_s, 1e3),
        _scaled(window.tpot_s, 1e3),
        _scaled(window.memory_bytes, 2**-20),
    )
    cells = ("-" if figure is None else f"{figure:.1f}" for figure in figures)
    return (str(number), *cells, str(window.num_errors))


def _plots(windows: Sequence[Window]) -> list[str]:
    columns = (
        ("Time to first token", "ms", [_scaled(w.ttft_s, 1e3) for w in windows]),
        ("Time per output token", "ms", [_scaled(w.tpot_s, 1e3) for w in windows]),
        ("Memory of the server", "MiB", [_scaled(w.memory_bytes, 2**-20) for w in windows]),
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
