"""One latency: its three percentiles in figures and as curves over two minutes."""

from collections.abc import Callable

from textual.content import Content

from appliance.server.schemas import LatencySnapshot, Percentiles
from tui.drawing import Curve, plot, plot_columns
from tui.figures import count, round_seconds, seconds
from tui.frame import Frame
from tui.history import Moment
from tui.widgets.panel import Panel

# Painted in this order: the median lies on top.
_PERCENTILES: tuple[tuple[str, str, Callable[[Percentiles], float | None]], ...] = (
    ("P99", "$p99", lambda latency: latency.p99_s),
    ("P95", "$p95", lambda latency: latency.p95_s),
    ("P50", "$p50", lambda latency: latency.p50_s),
)
_ROOMY_WIDTH = 50


class LatencyPanel(Panel):
    """`now` and `then` pick the latency from the present snapshot and from the history."""

    def __init__(
        self,
        title: str,
        *,
        now: Callable[[LatencySnapshot], Percentiles],
        then: Callable[[Moment], Percentiles | None],
        id: str,  # noqa: A002  (textual's own name for it)
    ) -> None:
        super().__init__(id=id)
        self.border_title = title
        self._now = now
        self._then = then

    def watch_frame(self, frame: Frame) -> None:
        """The lower border says what the percentiles are taken over."""
        latency = self._latency(frame)
        window = frame.snapshot.latency.window_s if frame.snapshot and frame.snapshot.latency else 0.0
        if latency is None or latency.count == 0:
            self.border_subtitle = f"no figures in {window:.0f} s" if latency else ""
            return
        target_s = {"ttft": frame.targets.ttft_s, "tpot": frame.targets.tpot_s}.get(self.id or "")
        if target_s:
            span = f"{count(latency.count)} in {window:.0f} s"
            self.border_subtitle = f"{span} · target {round_seconds(target_s)}"
        else:
            noun = "request" if latency.count == 1 else "requests"
            self.border_subtitle = f"{count(latency.count)} {noun} in {window:.0f} s"

    def lines(self) -> list[Content]:
        """The figures, then the plot in what is left."""
        width, height = self.content_size
        spacer = [Content("")] if height >= 6 else []  # a breath between figures and curves
        return [self._figures(width), *spacer, *self._plot(width, height - 1 - len(spacer))]

    def _figures(self, width: int) -> Content:
        latency = self._latency(self.frame)
        mark, gap = ("━ ", "   ") if width >= _ROOMY_WIDTH else ("", " ")
        parts = [
            Content.assemble(
                (f"{mark}{name} ", style), (seconds(read(latency) if latency else None), "bold $ink")
            )
            for name, style, read in reversed(_PERCENTILES)
        ]
        return Content(gap).join(parts)

    def _plot(self, width: int, height: int) -> list[Content]:
        columns = plot_columns(width)
        curves = [Curve(self._series(read, columns), style) for _, style, read in _PERCENTILES]
        return plot(curves, width, height, round_seconds)

    def _latency(self, frame: Frame) -> Percentiles | None:
        snapshot = frame.snapshot
        return self._now(snapshot.latency) if snapshot and snapshot.latency else None

    def _series(self, read: Callable[[Percentiles], float | None], num_bins: int) -> list[float | None]:
        def past(moment: Moment) -> float | None:
            latency = self._then(moment)
            return read(latency) if latency else None

        return self.frame.history.series(past, num_bins)
