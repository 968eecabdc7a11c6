"""Requests live and ended, and where the time of the chosen one went. Knows what the frames have seen."""

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import DataTable

from tui.calls import ApplianceCalls
from tui.figures import age, bare_rate, count
from tui.frame import Frame
from tui.request_watch import WatchedRequest
from tui.timed_request import TimedRequest
from tui.views.polled_view import PolledView
from tui.widgets.waterfall import Waterfall

_COLUMNS = ("id", "status", "age", "queue", "prefill", "decode", "prompt", "output", "tok/s")
_WIDTHS = (5, 9, 6, 7, 7, 7, 6, 6, 5)
_MAX_PADDING = 7
_MARKS = {
    "waiting": ("◌ waiting", "dim"),
    "prefill": ("◐ prefill", "p95"),
    "decode": ("● decode", "p50"),
    "ended": ("✓ ended", "dim"),
    "left": ("○ left", "dim"),
    "failed": ("✖ failed", "bad"),
}


class RequestsView(PolledView):
    """The table keeps its cursor on the request that was chosen, whatever comes and goes."""

    def __init__(self, calls: ApplianceCalls, *, id: str) -> None:  # noqa: A002  (textual's own name)
        super().__init__(calls, id=id)
        self._timed: list[TimedRequest] = []

    def compose(self) -> ComposeResult:
        """The table above, the waterfall below."""
        yield DataTable(id="request-table", cursor_type="row", zebra_stripes=False, cell_padding=1)
        yield Waterfall(id="waterfall")

    def on_mount(self) -> None:
        """Columns and titles, and the clock of its base."""
        super().on_mount()
        for name, width in zip(_COLUMNS, _WIDTHS, strict=True):
            self._table.add_column(Text(name, justify="left" if name == "status" else "right"), width=width)
        self._table.border_title = "Requests"
        self._waterfall.border_title = "Stages"

    def on_show(self) -> None:
        """The keys choose at once."""
        super().on_show()
        self._table.focus()
        self._fill()

    async def ask(self) -> None:
        """The stages that the appliance timed itself."""
        timed = [TimedRequest(record) for record in await self._calls.finished_requests()]
        if timed != self._timed:
            self._timed = timed
            self._fill()

    def tell(self, _text: str) -> None:
        """Without them, what the snapshots let be seen is shown."""
        self._timed = []

    def on_resize(self) -> None:
        """Columns move apart where there is room."""
        spare = self.size.width - 2 - sum(_WIDTHS) - 1
        self._table.cell_padding = min(max(spare // (2 * len(_WIDTHS)), 1), _MAX_PADDING)

    def watch_frame(self, _frame: Frame) -> None:
        """Only while it is seen."""
        if self.is_mounted and self.display:
            self._fill()

    def on_data_table_row_highlighted(self, _event: DataTable.RowHighlighted) -> None:
        """Another one is chosen."""
        self._show_stages()

    def _rows(self) -> Sequence[WatchedRequest | TimedRequest]:
        watch = self.frame.requests
        return (*watch.live, *(self._timed or watch.ended))

    def _fill(self) -> None:
        table, rows = self._table, self._rows()
        chosen = self._chosen()
        top = table.scroll_offset.y
        table.clear()
        colours = self.app.current_theme.variables
        for request in rows:
            table.add_row(*_cells(request, colours), key=request.key)
        place = next((place for place, one in enumerate(rows) if chosen and one.key == chosen.key), 0)
        if rows:
            table.move_cursor(row=place, animate=False, scroll=False)
            table.scroll_to(y=top, animate=False)
        watch = self.frame.requests
        table.border_subtitle = (
            f"{len(watch.live)} live · the last {len(self._timed or watch.ended)} ended" if rows else ""
        )
        self._show_stages()

    def _chosen(self) -> WatchedRequest | TimedRequest | None:
        table = self._table
        if not table.row_count:
            return None
        key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        return next((one for one in self._rows() if one.key == key), None)

    def _show_stages(self) -> None:
        chosen = self._chosen()
        self._waterfall.stages = tuple(chosen.stages) if chosen else ()
        is_exact = isinstance(chosen, TimedRequest)
        source = "timed by the appliance" if is_exact else "from the snapshots, to half a second"
        self._waterfall.border_subtitle = source
        self._waterfall.border_title = f"Stages of {chosen.id}" if chosen else "Stages"

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#request-table", DataTable)

    @property
    def _waterfall(self) -> Waterfall:
        return self.query_one("#waterfall", Waterfall)


def _cells(request: WatchedRequest | TimedRequest, colours: dict[str, str]) -> list[Text]:
    mark, role = _MARKS[request.status]
    ink = colours["dim" if request.has_ended else "ink"]
    lasted = {stage.name: stage.text for stage in request.stages}
    figures = (
        age(request.age_s),
        *(lasted.get(name, "–") for name in ("queue", "prefill", "decode")),
        count(request.prompt_tokens),
        count(request.output_tokens),
        bare_rate(request.output_tokens_per_s),
    )
    right = [Text(text, ink, justify="right") for text in figures]
    return [Text(str(request.id), ink, justify="right"), Text(mark, colours[role]), *right]
