"""The models on the appliance's disk: which are loaded, and loading, unloading and getting one."""

from collections.abc import Coroutine
from contextlib import aclosing
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import DataTable, Input, Static

from tui.calls import ApplianceCalls, CallError
from tui.drawing import bar
from tui.figures import byte_count, byte_share, percent
from tui.model_list import ModelRow
from tui.views.polled_view import PolledView
from tui.wire import PullLine

_COLUMNS = (
    ("model", 24),
    ("state", 11),
    ("quant", 7),
    ("weights", 7),
    ("size", 8),
    ("memory", 8),
)
_FIGURES = ("weights", "size", "memory")
_MARKS = {
    "loaded": ("●", "p50"),
    "loading": ("◌", "p50"),
    "draining": ("◐", "warn"),
    "installed": ("○", "ink"),
    "available": ("↓", "dim"),
}
_MAX_PADDING = 6
_MAX_NAME = 48
_PROGRESS_WIDTH = 30


class ModelsView(PolledView):
    """One job at a time: what it does stands in the line below the table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("u", "unload", "unload", show=False),
        Binding("g", "ask_name", "get a model", show=False),
        Binding("escape", "close_name", "close", show=False),
    ]

    def __init__(self, calls: ApplianceCalls, *, id: str) -> None:  # noqa: A002  (textual's own name)
        super().__init__(calls, id=id)
        self._rows: list[ModelRow] = []
        self._job = ""

    def compose(self) -> ComposeResult:
        """The table, the line that tells, and the field for a name."""
        yield DataTable(id="model-table", cursor_type="row", cell_padding=1)
        yield Static(id="model-note")
        yield Input(placeholder="name of a model to download, for example qwen3-0.6b", id="model-name")

    def on_mount(self) -> None:
        """Columns and titles, and the clock of its base."""
        super().on_mount()
        self._table.border_title = "Models on the appliance"
        for name, width in _COLUMNS:
            title = Text(name, justify="right") if name in _FIGURES else Text(name)
            self._table.add_column(title, width=width)
        self._name_field.display = False
        self._table.border_subtitle = "asking …"
        self.tell("")

    def on_show(self) -> None:
        """The keys choose at once."""
        super().on_show()
        self._table.focus()

    def on_resize(self) -> None:
        """Columns move apart where there is room."""
        spare = self.size.width - 3 - sum(width for _, width in _COLUMNS) - 2 * len(_COLUMNS)
        # Names first: they are what is cut.
        names_width = min(max(spare, 0), _MAX_NAME - _COLUMNS[0][1])
        self._table.ordered_columns[0].width = _COLUMNS[0][1] + names_width
        self._table.cell_padding = min(1 + max(spare - names_width, 0) // (2 * len(_COLUMNS)), _MAX_PADDING)

    async def ask(self) -> None:
        """What lies on the disk, and what is in memory."""
        rows = await self._calls.models()
        if rows != self._rows:
            self._rows = rows
            self._fill()
        if not self._job:
            self.tell("")

    def tell(self, text: str) -> None:
        """What goes on or went wrong; else how to begin."""
        idle = "Enter loads the chosen one, or gets it first; g gets one by name."
        note = Content.styled(text, "bold $warn") if text else Content.styled(idle, "$dim")
        self.query_one("#model-note", Static).update(note)

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Enter or a click on the chosen row."""
        model = self._chosen()
        if model is None or model.is_in_memory:
            return
        if model.state == "available":
            self._start(f"Getting {model.name}", self._pull(model.name))
        else:
            self._start(f"Loading {model.name}", self._calls.load(model.name))

    def action_unload(self) -> None:
        """The chosen one."""
        model = self._chosen()
        if model is not None and model.state == "loaded":
            self._start(f"Unloading {model.name}", self._calls.unload(model.name))

    def action_ask_name(self) -> None:
        """Opens the field."""
        self._name_field.display = True
        self._name_field.focus()

    def action_close_name(self) -> None:
        """Back to the table."""
        self._name_field.display = False
        self._table.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A name was given."""
        name = event.value.strip()
        event.input.clear()
        self.action_close_name()
        if name:
            self._start(f"Getting {name}", self._pull(name))

    def _start(self, what: str, work: Coroutine[None, None, None]) -> None:
        if self._job:
            work.close()
            return
        self._job = what
        self._show_job(Content.styled(f"{what} …", "$p50"))
        self.run_worker(self._finish(what, work), group="job")

    async def _finish(self, what: str, work: Coroutine[None, None, None]) -> None:
        try:
            await work
            self._show_job(Content.styled(f"{what}: done.", "$p50"))
        except CallError as error:
            self._show_job(Content.styled(f"{what}: {error}", "bold $warn"))
        # The result stays until the next job; polling must not wipe it.
        self.set_timer(8.0, self._end_job)

    def _end_job(self) -> None:
        self._job = ""

    async def _pull(self, name: str) -> None:
        async with aclosing(self._calls.pull(name)) as lines:
            async for line in lines:
                self._show_job(_progress(name, line))

    def _show_job(self, text: Content) -> None:
        self.query_one("#model-note", Static).update(text)

    def _chosen(self) -> ModelRow | None:
        row = self._table.cursor_row
        return self._rows[row] if self._table.row_count and row < len(self._rows) else None

    def _fill(self) -> None:
        colours = self.app.current_theme.variables
        row = self._table.cursor_row
        self._table.clear()
        for model in self._rows:
            self._table.add_row(*_cells(model, colours))
        if self._rows:
            self._table.move_cursor(row=min(row, len(self._rows) - 1), animate=False)
        num_loaded = sum(model.state == "loaded" for model in self._rows)
        num_absent = sum(model.state == "available" for model in self._rows)
        absent = f" · {num_absent} to get" if num_absent else ""
        self._table.border_subtitle = f"{num_loaded} loaded · {len(self._rows) - num_absent} here{absent}"

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#model-table", DataTable)

    @property
    def _name_field(self) -> Input:
        return self.query_one("#model-name", Input)


def _cells(model: ModelRow, colours: dict[str, str]) -> list[Text]:
    mark, mark_role = _MARKS.get(model.state, ("?", "dim"))
    ink = colours["dim" if model.state == "available" else "ink"]
    name = Text.assemble((f"{mark} ", colours[mark_role]), (model.name, ink), overflow="ellipsis")
    state = f"{model.requests} running" if model.requests else model.state
    memory = byte_count(model.memory_bytes).strip() if model.memory_bytes else "–"
    return [
        name,
        Text(model.detail or state, colours[mark_role], overflow="ellipsis"),
        Text(model.precision or "–", ink),
        Text(model.parameters or "–", ink, justify="right"),
        Text(byte_count(model.size_bytes).strip(), ink, justify="right"),
        Text(memory, colours["p50"] if model.memory_bytes else colours["dim"], justify="right"),
    ]


def _progress(name: str, line: PullLine) -> Content:
    if not line.total or line.completed is None:
        return Content.assemble((f"{name}: ", "$dim"), (line.status, "$ink"))
    share = line.completed / line.total
    return Content.assemble(
        (f"{name}  ", "$ink"),
        bar([(share, "$p50")], _PROGRESS_WIDTH),
        (f" {percent(share)}  {byte_share(line.completed, line.total)}", "$ink"),
    )
