"""A run told to people: tables of text, Markdown, the page with plots. Computes nothing."""

from collections.abc import Sequence

from appliance.bench.comparison import Difference, summary
from appliance.bench.html_page import page, plots, table
from appliance.bench.report import Report, Stage
from appliance.bench.statistics import Interval
from appliance.bench.svg_plot import Axis, Series, plot

_RANKS = ("p50", "p95", "p99")
_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "latency": "Whole answer"}
_HEAD = (
    "traffic",
    "tok/s",
    "req/s",
    "good req/s",
    "TTFT p50",
    "p95",
    "p99",
    "TPOT p50",
    "p95",
    "p99",
    "errors",
)


def report_rows(report: Report, *, has_intervals: bool = True) -> list[tuple[str, ...]]:
    """Return one row a stage below the heading; times in milliseconds, with their 95% intervals if wanted."""
    return [_HEAD, *(_row(stage, has_intervals) for stage in report.stages)]


def difference_rows(differences: Sequence[Difference]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("traffic", "metric", "before, ms", "after, ms", "change", "p", "verdict")]
    for d in differences:
        before, after = f"{d.before_s * 1e3:.2f}", f"{d.after_s * 1e3:.2f}"
        rows.append((d.stage, d.metric, before, after, f"{d.change:+.1%}", f"{d.p_value:.2g}", d.verdict))
    return rows


def lead(report: Report) -> str:
    """Return what was loaded, with what, where and when."""
    return (
        f"{report.model} at {report.url}, {report.workload}, on {report.machine}, {report.started}. "
        "Times in milliseconds, with 95% bootstrap intervals."
    )


def to_markdown(reports: Sequence[Report], differences: Sequence[Difference]) -> str:
    parts = ["# Benchmark"]
    for report in reports:
        parts += [f"## {report.model} at {report.url}", lead(report), markdown_table(report_rows(report))]
    if differences:
        parts += [f"## Compared: {summary(differences)}", markdown_table(difference_rows(differences))]
    return "\n\n".join(parts) + "\n"


def to_html(reports: Sequence[Report], differences: Sequence[Difference]) -> str:
    sections = []
    for report in reports:
        sections += [f"<h2>{_escaped(report)}</h2>", table(report_rows(report)), plots(_plots(report))]
    if differences:
        sections += [f"<h2>Compared: {summary(differences)}</h2>", table(difference_rows(differences))]
    return page("Benchmark", " ".join(map(lead, reports)), sections)


def _escaped(report: Report) -> str:
    from html import escape

    return escape(f"{report.model} at {report.url}")


def _row(stage: Stage, has_intervals: bool) -> tuple[str, ...]:
    cells = [
        stage.name,
        f"{stage.output_tokens_per_s:.1f}",
        f"{stage.requests_per_s:.2f}",
        f"{stage.good_requests_per_s:.2f}",
    ]
    for metric in ("ttft", "tpot"):
        intervals = stage.percentiles.get(metric) or ()
        cells += [_milliseconds(interval, has_intervals) for interval in intervals] or ["-"] * len(_RANKS)
    return (*cells, str(sum(stage.errors.values())))


def _milliseconds(interval: Interval, has_interval: bool) -> str:
    value, low, high = (number * 1e3 for number in interval)
    return f"{value:.1f}" + (f" [{low:.1f}, {high:.1f}]" if has_interval else "")


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first row is the heading."""
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def _plots(report: Report) -> list[str]:
    drawn = []
    for is_open, label in ((False, "clients"), (True, "requests per second")):
        stages = sorted((s for s in report.stages if s.is_open == is_open), key=lambda s: s.load)
        if not stages:
            continue
        x = Axis(label=label)
        rates = Series(name="tokens/s", points=tuple((s.load, s.output_tokens_per_s) for s in stages))
        drawn.append(plot("Throughput", x, Axis(label="output tokens per second"), [rates]))
        goodput = (
            Series(name="all", points=tuple((s.load, s.requests_per_s) for s in stages)),
            Series(name="good", points=tuple((s.load, s.good_requests_per_s) for s in stages)),
        )
        drawn.append(plot("Goodput", x, Axis(label="requests per second"), goodput))
        drawn += [_percentile_plot(title, metric, x, stages) for metric, title in _TITLES.items()]
    drawn += [_distribution(title, metric, report.stages) for metric, title in _TITLES.items()]
    return drawn


def _percentile_plot(title: str, metric: str, x: Axis, stages: Sequence[Stage]) -> str:
    having = [(stage.load, stage.percentiles[metric]) for stage in stages if stage.percentiles[metric]]
    series = [
        Series(
            name=rank,
            points=tuple((load, intervals[index].value * 1e3) for load, intervals in having),
            bands=tuple((i[index].low * 1e3, i[index].high * 1e3) for _, i in having),
        )
        for index, rank in enumerate(_RANKS)
    ]
    return plot(title, x, Axis(label="milliseconds"), series)


def _distribution(title: str, metric: str, stages: Sequence[Stage]) -> str:
    """Draw the share of requests that took so long at most."""
    series = []
    for stage in stages[-6:]:
        ascending = sorted(stage.samples[metric])
        points = tuple((value * 1e3, (i + 1) / len(ascending)) for i, value in enumerate(ascending))
        series.append(Series(name=stage.name, points=points))
    x, y = Axis(label="milliseconds", is_log=True), Axis(label="share of requests")
    return plot(f"{title}: distribution", x, y, series)
