"""The paged KV pool: how much of it is used, cached and free, as a bar, in blocks and in bytes."""

from textual.content import Content

from appliance.server.schemas import KVSnapshot
from tui.drawing import gauge
from tui.figures import GAP, byte_count, byte_share, count
from tui.frame import Frame
from tui.widgets.panel import Panel

_TALL = 5


class KVPanel(Panel):
    """Two lines where room is short; one line for each kind of block where it is not."""

    def on_mount(self) -> None:
        """Shown only where the panel has a border of its own."""
        self.border_title = "KV pool"

    def watch_frame(self, frame: Frame) -> None:
        """The lower border tells the size of a page."""
        kv = frame.snapshot.kv if frame.snapshot else None
        self.border_subtitle = f"blocks of {kv.block_size} tokens" if kv else ""

    def lines(self) -> list[Content]:
        """The gauge, then the legend."""
        width, height = self.content_size
        kv = self.frame.snapshot.kv if self.frame.snapshot else None
        if kv is None:
            return [gauge("KV", [], None, f"{GAP:<13}", width)]
        legend = _legend_column(kv) if height >= _TALL else [_legend_row(kv, width)]
        spacer = [Content("")] if height >= _TALL else []
        return [_pool_gauge(kv, width), *spacer, *legend]


def _pool_gauge(kv: KVSnapshot, width: int) -> Content:
    num_blocks = max(kv.num_blocks, 1)
    used, cached = kv.used_blocks / num_blocks, kv.cached_blocks / num_blocks
    figure = byte_share(round(kv.pool_bytes * used), kv.pool_bytes)
    return gauge("KV", [(used, "$used"), (cached, "$cached")], used, figure, width)


def _kinds(kv: KVSnapshot) -> list[tuple[str, str, int]]:
    return [
        ("used", "$used", kv.used_blocks),
        ("cached", "$cached", kv.cached_blocks),
        ("free", "$track", kv.free_blocks),
    ]


def _legend_row(kv: KVSnapshot, width: int) -> Content:
    is_roomy = width >= 50
    mark, gap = ("━ ", "   ") if is_roomy else ("", " ")
    parts = [
        Content.assemble((mark, style), (f"{name} ", "$dim"), (f"{count(number):<6}", "$ink"))
        for name, style, number in _kinds(kv)
    ]
    indent = " " * 5 if is_roomy else ""
    return Content.assemble(indent, Content(gap).join(parts)).truncate(width)


def _legend_column(kv: KVSnapshot) -> list[Content]:
    block_bytes = kv.pool_bytes / max(kv.num_blocks, 1)
    return [
        Content.assemble(
            ("━━━  ", style),
            (f"{name:<7}", "$dim"),
            (f"{count(number):>7} blocks", "$ink"),
            (f"   {byte_count(round(number * block_bytes))}", "$ink"),
        )
        for name, style, number in _kinds(kv)
    ]
