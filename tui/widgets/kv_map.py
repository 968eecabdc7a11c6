"""The KV pool as a field of cells, in proportion: used, cached, free. Knows no single block's place."""

from textual.content import Content

from tui.figures import count
from tui.frame import Frame
from tui.widgets.panel import Panel


class KVMap(Panel):
    """The snapshot counts blocks by state; the field shows the counts, not addresses."""

    def on_mount(self) -> None:
        """The title stands in the border."""
        self.border_title = "KV map"

    def on_resize(self) -> None:
        """Another size, another scale."""
        self.watch_frame(self.frame)

    def watch_frame(self, frame: Frame) -> None:
        """The lower border tells how much a cell is."""
        kv = frame.snapshot.kv if frame.snapshot else None
        cells = self._num_cells()
        if kv is None or not cells:
            self.border_subtitle = ""
        elif kv.num_blocks <= cells:
            self.border_subtitle = f"■ 1 block of {kv.block_size} tokens"
        else:
            self.border_subtitle = f"■ about {count(max(round(kv.num_blocks / cells), 1))} blocks"

    def lines(self) -> list[Content]:
        """Rows of cells, filled from the upper left."""
        width, height = self.content_size
        kv = self.frame.snapshot.kv if self.frame.snapshot else None
        if kv is None or not width or not height:
            return []
        cells = min(self._num_cells(), max(kv.num_blocks, 1))
        share = cells / max(kv.num_blocks, 1)
        used = _at_least_one(kv.used_blocks, share)
        cached = min(_at_least_one(kv.cached_blocks, share), cells - used)
        styles = ["$used"] * used + ["$cached"] * cached + ["$track"] * (cells - used - cached)
        return [_row(styles[first : first + width]) for first in range(0, cells, width)]

    def _num_cells(self) -> int:
        return self.content_size.width * self.content_size.height


def _at_least_one(num_blocks: int, share: float) -> int:
    """What exists is seen, however little of it there is."""
    return max(round(num_blocks * share), 1) if num_blocks else 0


def _row(styles: list[str]) -> Content:
    parts: list[tuple[str, str]] = []
    for style in styles:
        if parts and parts[-1][1] == style:
            parts[-1] = (parts[-1][0] + "■", style)
        else:
            parts.append(("■", style))
    return Content.assemble(*parts)
