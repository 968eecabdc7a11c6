"""The stages of one request, one bar below the other on a common scale of time. Knows no requests."""

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tui.drawing import spread
from tui.figures import seconds
from tui.request_watch import Stage

_LABEL_WIDTH = 11
_FIGURE_WIDTH = 9
_ROLES = ("$p99", "$p95", "$p50", "$warn")


class Waterfall(Widget):
    """`note` says where the times come from; it stands in the lower border."""

    stages: reactive[tuple[Stage, ...]] = reactive(())

    def render(self) -> Content:
        """A line a stage, then the scale."""
        width, height = self.content_size
        room = width - _LABEL_WIDTH - _FIGURE_WIDTH
        if not self.stages:
            return Content.styled("No request chosen.", "$dim")
        if room < 8:
            return Content("")
        whole_s = max(stage.start_s + stage.duration_s for stage in self.stages) or 1.0
        shown, others = _fitting(self.stages, height - 1)
        rows = [_row(stage, self.stages.index(stage), whole_s, room) for stage in shown]
        if others:
            rows.append(_rest(others, room))
        scale = spread(Content("0"), Content(seconds(whole_s).strip()), room).stylize("$dim")
        rows.append(Content.assemble(" " * _LABEL_WIDTH, scale))
        return Content("\n").join(rows[:height])


def _fitting(stages: tuple[Stage, ...], num_rows: int) -> tuple[list[Stage], list[Stage]]:
    """Those that have a row, and the shortest, which share one where there are too few rows."""
    if len(stages) <= num_rows:
        return list(stages), []
    longest = sorted(stages, key=lambda stage: -stage.duration_s)[: max(num_rows - 1, 1)]
    shown = [stage for stage in stages if stage in longest]
    return shown, [stage for stage in stages if stage not in longest]


def _rest(others: list[Stage], room: int) -> Content:
    names = ", ".join(stage.name for stage in others)
    figure = seconds(sum(stage.duration_s for stage in others)).strip()
    return Content.assemble(
        (f"{f'{len(others)} short':<{_LABEL_WIDTH}}", "$dim"),
        (f"{names[:room]:<{room}}", "$dim"),
        (f"{figure:>{_FIGURE_WIDTH}}", "bold $ink"),
    )


def _row(stage: Stage, index: int, whole_s: float, room: int) -> Content:
    first = min(round(stage.start_s / whole_s * room), room - 1)
    last = min(max(round((stage.start_s + stage.duration_s) / whole_s * room), first + 1), room)
    role = _ROLES[index % len(_ROLES)]
    return Content.assemble(
        (f"{stage.name:<{_LABEL_WIDTH}}", "$dim"),
        ("·" * first, "$track"),
        ("█" * (last - first), role),
        ("·" * (room - last), "$track"),
        (f"{stage.text:>{_FIGURE_WIDTH}}", "bold $ink"),
    )
