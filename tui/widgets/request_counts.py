"""How many requests run, wait and have ended, and how: as one line, or as a panel of its own."""

from dataclasses import dataclass

from textual.content import Content

from appliance.server.schemas import Percentiles, RequestCounts
from tui.figures import COUNT_WIDTH, count, seconds, short_count
from tui.widgets.panel import Panel

_ROOMY_WIDTH = 112


class RequestLine(Panel):
    """`running 8  waiting 3  done 120 …`: every count keeps its place while it grows."""

    def lines(self) -> list[Content]:
        """One line; where room is short the names are, too: 76 cells hold every count."""
        width = self.content_size.width
        is_roomy = width >= _ROOMY_WIDTH
        parts = [
            Content.assemble(
                (f"{kind.name if is_roomy else kind.short_name} ", "$dim"),
                kind.figure(COUNT_WIDTH) if is_roomy else kind.short_figure(),
            )
            for kind in _kinds(self.frame.snapshot.requests if self.frame.snapshot else None)
        ]
        return [Content("  " if is_roomy else " ").join(parts)]


class RequestPanel(Panel):
    """The counts in two columns, and the waits that requests feel besides TTFT and TPOT."""

    def on_mount(self) -> None:
        """The title stands in the border."""
        self.border_title = "Requests"

    def lines(self) -> list[Content]:
        """Counts, then queue wait and token gap."""
        snapshot = self.frame.snapshot
        cells = [
            Content.assemble((f"{kind.name:<11}", "$dim"), kind.figure(COUNT_WIDTH))
            for kind in _kinds(snapshot.requests if snapshot else None)
        ]
        half = (len(cells) + 1) // 2
        cells += [Content("")] * (2 * half - len(cells))
        gap = " " * 6
        rows = [Content.assemble(cells[row], gap, cells[row + half]) for row in range(half)]
        latency = snapshot.latency if snapshot else None
        rows.append(_waits("queue wait", latency.queue if latency else None))
        rows.append(_waits("token gap", latency.itl if latency else None))
        return rows


@dataclass(frozen=True, slots=True)
class _Kind:
    """One count: its names, the cells it gets on a short line, and its role where it is not zero."""

    name: str
    short_name: str
    short_width: int
    value: int | None
    style: str

    def figure(self, width: int) -> tuple[str, str]:
        return f"{count(self.value):<{width}}", self.style if self.value else "$dim"

    def short_figure(self) -> tuple[str, str]:
        text = count(self.value) if self.short_width >= COUNT_WIDTH else short_count(self.value)
        return f"{text:<{self.short_width}}", self.style if self.value else "$dim"


def _kinds(requests: RequestCounts | None) -> list[_Kind]:
    def read(name: str) -> int | None:
        return None if requests is None else int(getattr(requests, name))

    return [
        _Kind("running", "run", 4, read("running"), "bold $p50"),
        _Kind("waiting", "wait", 4, read("waiting"), "bold $ink"),
        _Kind("finished", "done", 6, read("finished"), "$ink"),
        _Kind("aborted", "abort", 4, read("aborted"), "$ink"),
        _Kind("failed", "fail", 4, read("failed"), "bold $bad"),
        _Kind("rejected", "reject", 4, read("rejected"), "bold $warn"),
        _Kind("preempted", "preempt", 4, read("preemptions"), "$warn"),
    ]


def _waits(name: str, latency: Percentiles | None) -> Content:
    figures = (latency.p50_s, latency.p95_s, latency.p99_s) if latency else (None, None, None)
    parts: list[tuple[str, str]] = [(f"{name:<12}", "$dim")]
    for label, value in zip(("P50", "P95", "P99"), figures, strict=True):
        parts += [(f"{label} ", "$dim"), (f"{seconds(value)}  ", "$ink" if value is not None else "$dim")]
    return Content.assemble(*parts)
