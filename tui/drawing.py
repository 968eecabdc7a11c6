"""Lines of coloured text that the panels are made of: plots, gauges, big figures. Knows no snapshots."""

from collections.abc import Callable, Sequence

from textual.content import Content

from tui.braille import BLANK, BrailleCanvas, Run
from tui.figures import nice_ceiling, percent

AXIS_WIDTH = 8
# Below this a scale would take more room than the curve.
_NARROWEST_WITH_AXIS = 24
_LOWEST_WITH_TIME = 8

_GAUGE_LABEL_WIDTH = 5
# Three half-block rows per digit, three cells wide.
_GLYPHS = {
    "0": ("█▀█", "█ █", "▀▀▀"),
    "1": ("▀█ ", " █ ", "▀▀▀"),
    "2": ("▀▀█", "█▀▀", "▀▀▀"),
    "3": ("▀▀█", " ▀█", "▀▀▀"),
    "4": ("█ █", "▀▀█", "  ▀"),
    "5": ("█▀▀", "▀▀█", "▀▀▀"),
    "6": ("█▀▀", "█▀█", "▀▀▀"),
    "7": ("▀▀█", "  █", "  ▀"),
    "8": ("█▀█", "█▀█", "▀▀▀"),
    "9": ("█▀█", "▀▀█", "▀▀▀"),
    ".": (" ", " ", "▀"),
    "k": ("█ ▄", "█▀▄", "▀ ▀"),
    "M": ("█▄█", "█▀█", "▀ ▀"),
    "–": ("   ", "▀▀▀", "   "),
}
BIG_FIGURE_HEIGHT = 3


class Curve:
    """One series of a plot: a value per dot column, a colour role, and whether the area below is filled."""

    def __init__(self, values: Sequence[float | None], style: str, *, is_filled: bool = False) -> None:
        self.values = values
        self.style = style
        self.is_filled = is_filled


def plot_columns(width: int) -> int:
    """How many values a plot of `width` cells draws."""
    return 2 * max(width - axis_width(width), 1)


def axis_width(width: int) -> int:
    """Cells that the scale takes of a plot's width."""
    return AXIS_WIDTH if width >= _NARROWEST_WITH_AXIS else 0


def plot(curves: Sequence[Curve], width: int, height: int, label: Callable[[float], str]) -> list[Content]:
    """`height` lines of `width` cells: a scale of two labels, and the curves, the last one on top.

    A low plot goes without the line that says what the horizontal axis is.
    """
    values = [value for curve in curves for value in curve.values if value is not None]
    top = nice_ceiling(max(values, default=0.0))
    axis = axis_width(width)
    rows_high = height - 1 if axis and height >= _LOWEST_WITH_TIME else height
    canvas = BrailleCanvas(width - axis, rows_high)
    for layer, curve in enumerate(curves):
        draw = canvas.draw_area if curve.is_filled else canvas.draw_line
        draw(curve.values, top, layer)
    styles = [curve.style for curve in curves]
    rows = [_plot_row(row, styles) for row in canvas.rows()]
    if axis:
        ends = [label(top).strip() if any(values) else "", *[""] * (rows_high - 2), "0"][:rows_high]
        rows = [Content.assemble(_axis_cell(end), row) for end, row in zip(ends, rows, strict=True)]
    return [*rows, *([_time_axis(width, axis)] if rows_high < height else [])]


def _plot_row(runs: list[Run], styles: list[str]) -> Content:
    return Content.assemble(*((text, styles[layer] if layer != BLANK else "") for text, layer in runs))


def _axis_cell(text: str) -> Content:
    return Content.assemble((f"{text:>{AXIS_WIDTH - 1}}", "$dim"), ("┤" if text else "│", "$axis"))


def _time_axis(width: int, axis: int) -> Content:
    ends = spread(Content("2 min ago"), Content("now"), width - axis)
    return Content.assemble(" " * axis, ends).stylize("$dim")


def bar(shares: Sequence[tuple[float, str]], width: int) -> Content:
    """A line of `width` cells cut in parts; each share is a fraction of the whole, the rest is track."""
    parts: list[tuple[str, str]] = []
    drawn, total = 0, 0.0
    for share, style in shares:
        total += min(max(share, 0.0), 1.0)
        end = max(min(round(total * width), width), drawn)
        # What exists is seen, however little of it there is.
        if share > 0 and end == drawn and drawn < width:
            end += 1
        parts.append(("━" * (end - drawn), style))
        drawn = end
    return Content.assemble(*parts, ("━" * (width - drawn), "$track"))


def gauge(
    label: str, shares: Sequence[tuple[float, str]], fraction: float | None, figure: str, width: int
) -> Content:
    """`RAM  ━━━━━━━━  26%  4.10/16.0 GiB`: a label, a bar, a percentage and a figure of fixed width."""
    tail = f" {percent(fraction)} {figure}"
    room = max(width - _GAUGE_LABEL_WIDTH - len(tail), 1)
    return Content.assemble((f"{label:<{_GAUGE_LABEL_WIDTH}}", "$dim"), bar(shares, room), (tail, "$ink"))


def severity(fraction: float, *, warn_at: float, bad_at: float) -> str:
    """The role of a gauge that should stay low."""
    if fraction >= bad_at:
        return "$bad"
    return "$warn" if fraction >= warn_at else "$used"


def big_figure(text: str, width: int, style: str) -> list[Content]:
    """`text` in letters three rows high, flush left in `width` cells."""
    rows = [" ".join(_GLYPHS[letter][row] for letter in text) for row in range(BIG_FIGURE_HEIGHT)]
    return [Content.styled(f"{row:<{width}}"[:width], style) for row in rows]


def spread(left: Content, right: Content, width: int) -> Content:
    """Both ends of one line."""
    gap = max(width - left.cell_length - right.cell_length, 1)
    return Content.assemble(left, " " * gap, right)
