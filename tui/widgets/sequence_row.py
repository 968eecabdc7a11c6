"""One live sequence as one line of text, and the heading above. Knows no scrolling and no cursor."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from appliance.server.schemas import LiveSequence
from tui.drawing import bar
from tui.figures import AGE_WIDTH, age, bare_rate, count, nice_ceiling

_STATUSES = {
    "running": ("● running", "$p50"),
    "waiting": ("○ waiting", "$dim"),
    "finished": ("✓ done", "$dim"),
}
_RANKS = {"running": 0, "waiting": 1, "finished": 2}

_ID_WIDTH, _STATUS_WIDTH, _COUNT_WIDTH, _RATE_WIDTH = 7, 9, 8, 6
_FIXED_WIDTH = _ID_WIDTH + _STATUS_WIDTH + AGE_WIDTH + 3 * _COUNT_WIDTH + _RATE_WIDTH
_NUM_GAPS = 7
_WIDEST_GAP = 6
# A wider gap is worth less than this many cells of bar.
_WELCOME_BAR = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Cells between columns and cells of the bar; the rest is fixed."""

    gap: int
    bar: int

    @classmethod
    def fitting(cls, width: int) -> "Columns":
        """The gaps grow once the bar is long enough to read; the bar takes the rest."""
        spare = max(width - _FIXED_WIDTH, 0)
        gap = min(max((spare - _WELCOME_BAR) // _NUM_GAPS, 2), _WIDEST_GAP)
        return cls(gap=gap, bar=max(spare - gap * _NUM_GAPS, 0))


def in_order(sequences: Sequence[LiveSequence]) -> list[LiveSequence]:
    """Running first, then waiting; within each the oldest first, so that rows seldom move."""
    return sorted(sequences, key=lambda sequence: (_RANKS[sequence.status], -sequence.age_s, sequence.id))


def bar_scale(sequences: Sequence[LiveSequence]) -> float:
    """How many tokens a full bar stands for: a round number past the longest sequence."""
    return nice_ceiling(max((one.prompt_tokens + one.output_tokens for one in sequences), default=0))


def heading(columns: Columns) -> Content:
    """The column names, aligned as the figures below them."""
    legend = Content.assemble(("━ ", "$cached"), ("prompt ", "$dim"), ("━ ", "$used"), ("output", "$dim"))
    cells = [
        _right("id", _ID_WIDTH),
        f"{'status':<{_STATUS_WIDTH}}",
        _right("age", AGE_WIDTH),
        _right("prompt", _COUNT_WIDTH),
        _right("computed", _COUNT_WIDTH),
    ]
    tail = [_right("output", _COUNT_WIDTH), _right("tok/s", _RATE_WIDTH)]
    shown_legend = legend if columns.bar >= legend.cell_length else Content("")
    gap = " " * columns.gap
    return Content.assemble(
        (gap.join(cells) + gap, "$dim"),
        shown_legend.pad_right(columns.bar - shown_legend.cell_length),
        (gap + gap.join(tail), "$dim"),
    )


def sequence_row(sequence: LiveSequence, columns: Columns, scale: float) -> Content:
    """One line: what it is, what it holds in the KV pool, how fast it goes."""
    status, style = _STATUSES[sequence.status]
    ink = "$ink" if sequence.status == "running" else "$dim"
    gap = " " * columns.gap
    left = [
        _right(str(sequence.id), _ID_WIDTH),
        None,
        _right(age(sequence.age_s), AGE_WIDTH),
        _right(count(sequence.prompt_tokens), _COUNT_WIDTH),
        _right(count(sequence.computed_tokens), _COUNT_WIDTH),
    ]
    parts: list[Content | tuple[str, str]] = []
    for cell in left:
        parts.append((f"{status:<{_STATUS_WIDTH}}", style) if cell is None else (cell, ink))
        parts.append((gap, ""))
    per_s = sequence.output_tokens_per_s
    parts += [
        _token_bar(sequence, columns.bar, scale),
        (gap + _right(count(sequence.output_tokens), _COUNT_WIDTH), ink),
        (gap + _right(bare_rate(per_s), _RATE_WIDTH), f"bold {ink}" if per_s else "$dim"),
    ]
    return Content.assemble(*parts)


def _token_bar(sequence: LiveSequence, width: int, scale: float) -> Content:
    """Computed tokens of the prompt, then of the output."""
    in_prompt = min(sequence.computed_tokens, sequence.prompt_tokens)
    in_output = sequence.computed_tokens - in_prompt
    return bar([(in_prompt / scale, "$cached"), (in_output / scale, "$used")], width)


def _right(text: str, width: int) -> str:
    return f"{text:>{width}}"
