"""The paged KV pool in full: pages by state, a map, waste, hits and evictions, and two curves."""

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.reactive import reactive

from appliance.server.schemas import KVSnapshot, Throughput
from tui.drawing import Curve, bar, plot, plot_columns
from tui.figures import GAP, byte_count, count, percent
from tui.frame import Frame
from tui.widgets.kv_map import KVMap
from tui.widgets.panel import Panel

_LABEL_WIDTH = 13


class KVFacts(Panel):
    """Pages by state with their share and bytes, then the counters."""

    def on_mount(self) -> None:
        """The title stands in the border."""
        self.border_title = "Pages"

    def watch_frame(self, frame: Frame) -> None:
        """The lower border tells the size of the whole."""
        kv = frame.snapshot.kv if frame.snapshot else None
        self.border_subtitle = f"{count(kv.num_blocks)} of {kv.block_size} tokens each" if kv else ""

    def lines(self) -> list[Content]:
        """One fact a line, those that matter most first."""
        snapshot = self.frame.snapshot
        if snapshot is None or snapshot.kv is None:
            return [Content.styled("No model is loaded, so there is no pool.", "$dim")]
        width, height = self.content_size
        rows = [*_states(snapshot.kv, width), Content(""), *_counters(snapshot.kv, snapshot.throughput)]
        return rows if len(rows) <= height else [row for row in rows if row.cell_length]


class KVUsePlot(Panel):
    """Used, and used with cached, over two minutes."""

    def on_mount(self) -> None:
        """The title stands in the border."""
        self.border_title = "Pool in use"
        self.border_subtitle = "used · with cached"

    def lines(self) -> list[Content]:
        """The curve of what is held lies behind that of what is used."""
        width, height = self.content_size
        series, columns = self.frame.history.series, plot_columns(width)
        held = series(lambda moment: moment.kv_held, columns)
        used = series(lambda moment: moment.kv_used, columns)
        curves = [Curve(held, "$cached", is_filled=True), Curve(used, "$used", is_filled=True)]
        return plot(curves, width, height, _share)


class KVHitPlot(Panel):
    """The prefix hit rate over two minutes."""

    def on_mount(self) -> None:
        """The title stands in the border."""
        self.border_title = "Prefix hit rate"
        self.border_subtitle = "of prompt tokens since the start"

    def lines(self) -> list[Content]:
        """One curve."""
        width, height = self.content_size
        hits = self.frame.history.series(lambda moment: moment.hit_rate, plot_columns(width))
        return plot([Curve(hits, "$p95")], width, height, _share)


class KVView(Container):
    """Four panels."""

    frame: reactive[Frame] = reactive(Frame(), always_update=True)

    def compose(self) -> ComposeResult:
        """Facts and map, then the curves."""
        for panel in (
            KVFacts(id="kv-facts"),
            KVMap(id="kv-map"),
            KVUsePlot(id="kv-use"),
            KVHitPlot(id="kv-hits"),
        ):
            yield panel.data_bind(KVView.frame)


def _share(fraction: float) -> str:
    """A round share for a scale: `0.3%`, `40%`."""
    return f"{100 * fraction:g}%"


def _states(kv: KVSnapshot, width: int) -> list[Content]:
    whole = max(kv.num_blocks, 1)
    block_bytes = kv.pool_bytes / whole
    rows = []
    for name, role, number in (
        ("used", "$used", kv.used_blocks),
        ("cached", "$cached", kv.cached_blocks),
        ("free", "$axis", kv.free_blocks),
    ):
        tail = f" {percent(number / whole)} {count(number):>7} {byte_count(round(number * block_bytes))}"
        rows.append(
            Content.assemble(
                (f"{name:<8}", "$dim"),
                bar([(number / whole, role)], max(width - 8 - len(tail), 1)),
                (tail, "$ink"),
            )
        )
    return rows


def _counters(kv: KVSnapshot, throughput: Throughput | None) -> list[Content]:
    slots = kv.used_blocks * kv.block_size
    waste = (
        f"{percent(kv.wasted_slots / slots).strip()}, {count(kv.wasted_slots)} empty places" if slots else GAP
    )
    hits = GAP if kv.prefix_hit_rate is None else percent(kv.prefix_hit_rate).strip()
    saved = f", {count(throughput.prefix_hit_tokens)} tokens" if throughput and kv.prefix_hit_rate else ""
    return [
        _fact("waste", waste, "$ink"),
        _fact("prefix hits", f"{hits}{saved}", "bold $p95"),
        _fact("evictions", count(kv.evicted_blocks), "$warn" if kv.evicted_blocks else "$ink"),
        _fact("allocations", count(kv.allocations), "$ink"),
        _fact("refused", count(kv.refused_allocations), "$bad" if kv.refused_allocations else "$ink"),
    ]


def _fact(label: str, figure: str, style: str) -> Content:
    return Content.assemble((f"{label:<{_LABEL_WIDTH}}", "$dim"), (figure, style))
