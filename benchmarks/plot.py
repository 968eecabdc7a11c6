"""Draws the medians as one SVG of bar charts, a panel a cell. Knows no plotting library."""

from html import escape
from statistics import median

from benchmarks.engines import LLAMA_Q4_0, LLAMA_Q4_1, LLAMA_Q8_0, OPENVINO, OURS, OURS_8BIT, OURS_INT8
from benchmarks.http_load import OUTPUT_RATE, http_cell
from benchmarks.results import Part, Results
from benchmarks.servers import LLAMA_HTTP, OURS_HTTP

_ENGINES = (OURS, OURS_INT8, LLAMA_Q4_1, LLAMA_Q4_0, OPENVINO, OURS_8BIT, LLAMA_Q8_0)
_PANELS = (
    ("decode", "batch 1, context 128", "Decode, batch 1, context 128"),
    ("decode", "batch 1, context 2048", "Decode, batch 1, context 2048"),
    ("decode", "batch 8, context 128", "Decode, batch 8, context 128"),
    ("decode", "batch 32, context 128", "Decode, batch 32, context 128"),
    ("prefill", "prefill 512", "Prefill, 512 tokens"),
    ("prefill", "prefill 2048", "Prefill, 2048 tokens"),
    ("http", http_cell(1, OUTPUT_RATE), "HTTP output, 1 client"),
    ("http", http_cell(32, OUTPUT_RATE), "HTTP output, 32 clients"),
)
_COLUMNS, _PANEL_WIDTH, _LABEL_WIDTH, _VALUE_WIDTH = 2, 480, 215, 60
_ROW, _TITLE, _MARGIN = 22, 30, 16
_OURS_COLOUR, _PEER_COLOUR, _SPREAD_COLOUR = "#1b6e4b", "#a9b2b8", "#33383b"


def bar_chart(results: Results) -> str:
    """All panels that have figures, two to a row; thin lines show the least and the most."""
    panels = []
    for part_name, cell, title in _PANELS:
        bars = _bars(results.part(part_name), cell)
        if bars:
            panels.append((title, bars))
    height_of_row = [
        _TITLE + _MARGIN + _ROW * max(len(bars) for _, bars in panels[i : i + _COLUMNS])
        for i in range(0, len(panels), _COLUMNS)
    ]
    drawn = []
    for index, (title, bars) in enumerate(panels):
        row, column = divmod(index, _COLUMNS)
        x, y = _MARGIN + column * (_PANEL_WIDTH + _MARGIN), _MARGIN + sum(height_of_row[:row])
        drawn.append(f'<g transform="translate({x},{y})">{_panel(title, bars)}</g>')
    width = _MARGIN + _COLUMNS * (_PANEL_WIDTH + _MARGIN)
    height = _MARGIN + sum(height_of_row)
    style = "text{font:12px sans-serif;fill:#22272a}.t{font-weight:bold}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
        f"<style>{style}</style>"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(drawn)}</svg>\n'
    )


def _bars(part: Part, cell: str) -> list[tuple[str, list[float]]]:
    names = (OURS_HTTP, LLAMA_HTTP) if "clients" in cell else _ENGINES
    return [(name, part.values(name, cell)) for name in names if part.values(name, cell)]


def _panel(title: str, bars: list[tuple[str, list[float]]]) -> str:
    most = max(max(values) for _, values in bars)
    scale = (_PANEL_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH) / most
    parts = [f'<text class="t" x="0" y="14">{escape(title)}, tokens per second</text>']
    for index, (name, values) in enumerate(bars):
        top = _TITLE - 6 + index * _ROW
        middle, low, high = (scale * value for value in (median(values), min(values), max(values)))
        colour = _OURS_COLOUR if name.startswith("ours") else _PEER_COLOUR
        centre = top + 8
        parts.append(
            f'<text x="{_LABEL_WIDTH - 6}" y="{top + 12}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LABEL_WIDTH}" y="{top}" width="{middle:.1f}" height="16" fill="{colour}"/>'
            f'<line x1="{_LABEL_WIDTH + low:.1f}" x2="{_LABEL_WIDTH + high:.1f}" y1="{centre}" y2="{centre}" '
            f'stroke="{_SPREAD_COLOUR}"/>'
            f'<text x="{_LABEL_WIDTH + high + 6:.1f}" y="{top + 12}">{median(values):,.0f}</text>'
        )
    return "".join(parts)
