"""The live sequences, one a row, redrawn in place. Knows the rows it was given and nothing of ended requests.

Once a key or a click has shown it, the cursor holds on to a sequence, not to a row number: when rows come, go
or change order, the cursor goes with its sequence and the view moves along, so that what is being read stays
where it is.
"""

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from appliance.server.schemas import LiveSequence
from tui.frame import Frame
from tui.widgets.panel import Panel
from tui.widgets.sequence_row import Columns, bar_scale, heading, in_order, sequence_row

_SCROLLBAR_WIDTH = 1
_MARGIN_WIDTH = 1  # between the last figure and the scrollbar
_IDLE = "Idle: nothing runs, nothing waits."


class SequenceHeading(Panel):
    """The names above the table's columns."""

    def lines(self) -> list[Content]:
        """One line, aligned with the rows beside their scrollbar."""
        width = self.content_size.width
        return [heading(Columns.fitting(width - _SCROLLBAR_WIDTH - _MARGIN_WIDTH))]


class SequenceTable(ScrollView, can_focus=True):
    """Scrolls by row; draws only the rows in view."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--row", "table--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "row up", show=False),
        Binding("down,j", "move(1)", "row down", show=False),
        Binding("pageup", "move_page(-1)", "page up", show=False),
        Binding("pagedown", "move_page(1)", "page down", show=False),
        Binding("home,g", "move_to(0)", "first row", show=False),
        Binding("end,G", "move_to(-1)", "last row", show=False),
        Binding("escape", "release", "release the cursor", show=False),
    ]

    frame: reactive[Frame] = reactive(Frame(), always_update=True)
    cursor_row: reactive[int] = reactive(0)

    def __init__(self, *, id: str) -> None:  # noqa: A002  (textual's own name for it)
        super().__init__(id=id)
        self._rows: list[LiveSequence] = []
        self._scale = 1.0
        self._holds_cursor = False

    def watch_frame(self, frame: Frame) -> None:
        """Takes the new rows and keeps the cursor, if someone uses it, on its sequence."""
        held = self.cursor_sequence if self._holds_cursor else None
        self._rows = in_order(frame.snapshot.sequences) if frame.snapshot else []
        self._scale = bar_scale(self._rows)
        self._fit()
        row = next((index for index, one in enumerate(self._rows) if held and one.id == held.id), None)
        if row is not None and row != self.cursor_row:
            self.scroll_to(y=self.scroll_offset.y + row - self.cursor_row, animate=False)
            self.cursor_row = row
        self.cursor_row = max(min(self.cursor_row, len(self._rows) - 1), 0)
        self.refresh()

    @property
    def cursor_sequence(self) -> LiveSequence | None:
        """The sequence under the cursor."""
        return self._rows[self.cursor_row] if self.cursor_row < len(self._rows) else None

    def render_line(self, y: int) -> Strip:
        """The row that lies `y` lines below the top of the view."""
        width = self.scrollable_content_region.width
        row = self.scroll_offset.y + y
        has_cursor = self._holds_cursor and row == self.cursor_row and bool(self._rows)
        style = self.get_visual_style("table--cursor" if has_cursor else "table--row")
        content = self._row_content(row, width)
        strips = Visual.to_strips(self, content, width, 1, style, apply_selection=False)
        return (strips[0] if strips else Strip.blank(width)).adjust_cell_length(width, style.rich_style)

    def _row_content(self, row: int, width: int) -> Content:
        if not self._rows:
            middle = max(self.scrollable_content_region.height - 1, 0) // 2
            return Content.styled(_IDLE if row == middle else "", "$dim").center(width)
        if row >= len(self._rows):
            return Content("")
        return sequence_row(self._rows[row], Columns.fitting(width - _MARGIN_WIDTH), self._scale)

    def action_move(self, num_rows: int) -> None:
        """Moves the cursor and brings it into view."""
        self._put_cursor(self.cursor_row + num_rows)

    def action_move_page(self, num_pages: int) -> None:
        """As many rows as are in view."""
        self._put_cursor(self.cursor_row + num_pages * max(self.scrollable_content_region.height - 1, 1))

    def action_move_to(self, row: int) -> None:
        """A row by number; negative ones count from the end."""
        self._put_cursor(row if row >= 0 else len(self._rows) + row)

    def on_click(self, event: events.Click) -> None:
        """Puts the cursor where the pointer is."""
        self._put_cursor(self.scroll_offset.y + event.y)

    def on_resize(self) -> None:
        """A smaller view may have lost the cursor."""
        self._fit()

    def action_release(self) -> None:
        """Back to the top, without a cursor."""
        self._holds_cursor = False
        self.cursor_row = 0
        self.scroll_to(y=0, animate=False)

    def _put_cursor(self, row: int) -> None:
        if not self._holds_cursor:
            # The first key shows the cursor where it is.
            row = self.scroll_offset.y if abs(row - self.cursor_row) == 1 else row
            self._holds_cursor = True
        self.cursor_row = max(min(row, len(self._rows) - 1), 0)
        top, height = self.scroll_offset.y, max(self.scrollable_content_region.height, 1)
        if self.cursor_row < top:
            self.scroll_to(y=self.cursor_row, animate=False)
        elif self.cursor_row >= top + height:
            self.scroll_to(y=self.cursor_row - height + 1, animate=False)

    def _fit(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._rows))
