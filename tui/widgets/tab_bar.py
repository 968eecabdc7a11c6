"""The row of tabs: which there are, their keys, and which is seen. Knows no views."""

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from tui.tabs import HELP, TABS, Tab

_ROOMY_WIDTH = 100


class TabBar(Widget):
    """One line; a click chooses."""

    active: reactive[str] = reactive("live")

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def render(self) -> Content:
        """The tabs, the active one on its own ground."""
        return Content(self._gap()).join([_cell(one, one.name == self.active) for one in (*TABS, HELP)])

    def on_click(self, event: events.Click) -> None:
        """Finds the tab below the pointer."""
        offset = event.get_content_offset(self)
        place = 0
        for one in (*TABS, HELP):
            end = place + _cell(one, False).cell_length
            if offset is not None and place <= offset.x < end:
                self.post_message(self.Chosen(one.name))
            place = end + len(self._gap())

    def _gap(self) -> str:
        return "  " if self.content_size.width >= _ROOMY_WIDTH else ""


def _cell(one: Tab, is_active: bool) -> Content:
    if is_active:
        return Content.styled(f" {one.key} {one.title} ", "bold $background on $p50")
    return Content.assemble((f" {one.key}", "bold $p50"), (f" {one.title} ", "$ink"))
