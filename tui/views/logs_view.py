"""The appliance's last log lines, the newest below. Knows lines and levels, not who writes them."""

import time
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import RichLog, Static

from appliance.server.schemas import LogEntry
from tui.calls import ApplianceCalls
from tui.timed_request import ID_CHARS, short_id
from tui.views.polled_view import PolledView

_MAX_LINES = 1000
_BAD = ("warning", "error", "critical")
_ROLES = {"warning": "warn", "error": "bad", "critical": "bad"}


class LogsView(PolledView):
    """Follows the end unless someone scrolls up."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "filter", "warnings only", show=False)]

    def __init__(self, calls: ApplianceCalls, *, id: str) -> None:  # noqa: A002  (textual's own name)
        super().__init__(calls, id=id)
        self._entries: list[LogEntry] = []
        self._pid = 0
        self._is_filtered = False

    def compose(self) -> ComposeResult:
        """The lines, and one for what there is to say of them."""
        yield RichLog(id="log", wrap=True, max_lines=_MAX_LINES, min_width=20)
        yield Static(id="log-note")

    def on_mount(self) -> None:
        """Its title, and the clock of its base."""
        super().on_mount()
        self._text_log.border_title = "Log: time, level, request, message"
        self._show_filter()

    def on_show(self) -> None:
        """The keys scroll at once."""
        super().on_show()
        self._text_log.focus()

    async def ask(self) -> None:
        """Only what is new since the last line; everything after a restart."""
        answer = await self._calls.logs(self._entries[-1].number if self._entries else 0)
        if answer.pid != self._pid:
            had_lines, self._pid = bool(self._entries), answer.pid
            self._entries.clear()
            self._text_log.clear()
            if had_lines:
                return
        self._entries = [*self._entries, *answer.lines][-_MAX_LINES:]
        follows = self._text_log.is_vertical_scroll_end
        for entry in answer.lines:
            self._write(entry, follows)
        self.tell("" if self._entries else "No line yet.")

    def tell(self, text: str) -> None:
        """Below the lines."""
        note = self.query_one("#log-note", Static)
        note.update(text)
        note.display = bool(text)

    def action_filter(self) -> None:
        """All lines, or warnings and errors alone."""
        self._is_filtered = not self._is_filtered
        self._show_filter()
        self.redraw()

    def redraw(self) -> None:
        """Writes every kept line again: the filter or the colours have changed."""
        self._text_log.clear()
        for entry in self._entries:
            self._write(entry, True)

    @property
    def _text_log(self) -> RichLog:
        return self.query_one("#log", RichLog)

    def _show_filter(self) -> None:
        self._text_log.border_subtitle = "warnings and errors; w shows all" if self._is_filtered else ""

    def _write(self, entry: LogEntry, follows: bool) -> None:
        if self._is_filtered and entry.level not in _BAD:
            return
        colours = self.app.current_theme.variables
        clock = time.strftime("%H:%M:%S", time.localtime(entry.at_s))
        role = colours[_ROLES.get(entry.level, "dim")]
        message_role = colours[_ROLES.get(entry.level, "ink")]
        line = Text.assemble(
            (f"{clock} ", colours["dim"]),
            (f"{entry.level[:7]:<7} ", role),
            (f"{short_id(entry.request_id):<{ID_CHARS}} ", colours["dim"]),
            (entry.message.removeprefix(f"{entry.request_id} "), message_role),
        )
        self._text_log.write(line, scroll_end=follows)
