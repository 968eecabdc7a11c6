"""Writes what the scheduler's runs found into docs/performance.md, between markers of its own, and a plot."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.scheduling.scenarios import Bar
from benchmarks.scheduling.simulation import percentile
from benchmarks.scheduling.step_table import StepCosts

BEGIN, END = "<!-- scheduling: begin -->", "<!-- scheduling: end -->"
_PANEL_WIDTH, _LABEL_WIDTH, _VALUE_WIDTH, _ROW, _TITLE, _MARGIN = 640, 170, 90, 22, 30, 16
_COLOURS = {50: "#a9b2b8", 99: "#1b6e4b"}

Panels = Mapping[str, Mapping[str, Sequence[float]]]


def write_report(bars: Sequence[Bar], panels: Panels, costs: StepCosts, document: Path, plot: Path) -> None:
    """Replace what is between the markers; what stands around them stays."""
    text = document.read_text(encoding="utf-8") if document.is_file() else "# Performance\n"
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    body = "\n\n".join(_sections(bars, costs, plot.name))
    document.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", encoding="utf-8")
    plot.write_text(draw(panels), encoding="utf-8")


def bar_table(bars: Sequence[Bar]) -> str:
    head = ["measure", "on", "off, or against", "result", "bar", ""]
    rows = [[b.measure, b.on, b.off or "—", _result(b), b.promised or "—", _verdict(b)] for b in bars]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def draw(panels: Panels) -> str:
    """One panel a scenario: the median and the P99 of each of its runs, in seconds."""
    drawn, top = [], _MARGIN
    for title, runs in panels.items():
        drawn.append(f'<g transform="translate({_MARGIN},{top})">{_panel(title, runs)}</g>')
        top += _TITLE + _MARGIN + 2 * _ROW * len(runs)
    width = 2 * _MARGIN + _PANEL_WIDTH
    style = "text{font:12px sans-serif;fill:#22272a}.t{font-weight:bold}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}">'
        f'<style>{style}</style><rect width="{width}" height="{top}" fill="#ffffff"/>{"".join(drawn)}</svg>\n'
    )


def _panel(title: str, runs: Mapping[str, Sequence[float]]) -> str:
    most = max(percentile(values, 99) for values in runs.values())
    scale = (_PANEL_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH) / most
    parts = [f'<text class="t" x="0" y="14">{escape(title)}, P50 and P99 in seconds</text>']
    for index, (name, values) in enumerate(runs.items()):
        for line, percent in enumerate(_COLOURS):
            value, top = percentile(values, percent), _TITLE - 6 + (2 * index + line) * _ROW
            label = escape(name) if line == 0 else ""
            parts.append(
                f'<text x="{_LABEL_WIDTH - 6}" y="{top + 12}" text-anchor="end">{label}</text>'
                f'<rect x="{_LABEL_WIDTH}" y="{top}" width="{scale * value:.1f}" height="16" '
                f'fill="{_COLOURS[percent]}"/>'
                f'<text x="{_LABEL_WIDTH + scale * value + 6:.1f}" y="{top + 12}">{value:,.1f}</text>'
            )
    return "".join(parts)


def _sections(bars: Sequence[Bar], costs: StepCosts, plot_name: str) -> list[str]:
    costs_told = (
        f"{1e3 * costs.step_s:.1f} ms a step, {1e3 * costs.prompt_token_s:.1f} ms a prompt token, "
        f"{1e3 * costs.stream_s:.1f} ms a stream, {1e6 * costs.context_s:.1f} us a token read back, "
        f"{1e6 * costs.pair_s:.2f} us a prompt pair; mean error of the fit {100 * costs.mean_error:.0f}%"
    )
    about = (
        "Written by `python -m benchmarks.scheduling`. Times are virtual but where a row says real: the real "
        "scheduler and block pool run simulated requests, and each step is charged what steps were measured "
        f"to take ({costs.machine}; {costs_told}). On and off differ in the one policy that a row names."
    )
    return ["## Scheduling", about, f"![Each policy on and off]({plot_name})", bar_table(bars)]


def _verdict(bar: Bar) -> str:
    if not bar.promised:
        return "shown"
    return "pass" if bar.passes else "**miss**"


def _result(bar: Bar) -> str:
    return f"{bar.result:,.0f}" if bar.result >= 100 or bar.result == 0 else f"{bar.result:.3g}"
