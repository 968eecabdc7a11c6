"""The bottom line: what the keys do, and what needs to be said now."""

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tui.drawing import spread
from tui.tabs import tab

_EVERYWHERE = (("d", "dark/light"), ("?", "help"), ("q", "quit"))


class KeyBar(Widget):
    """A notice, while there is one, takes the place of the keys."""

    notice: reactive[str] = reactive("")
    is_paused: reactive[bool] = reactive(False)
    version: reactive[str] = reactive("")
    active: reactive[str] = reactive("live")

    def render(self) -> Content:
        """One line of the widget's width."""
        width = self.content_size.width
        if self.notice:
            return Content.styled(self.notice, "bold $warn").truncate(width, ellipsis=True)
        return spread(self._keys(width), self._state(), width).truncate(width)

    def _keys(self, width: int) -> Content:
        """Those of the tab first; what does not fit is left out whole."""
        room = width - self._state().cell_length
        shown = Content("")
        here = tab(self.active)
        for key, what in here.keys if here.takes_text else (*here.keys, *_EVERYWHERE):
            gap = "   " if shown.cell_length else ""
            longer = Content.assemble(shown, gap, (key, "bold $ink"), (f" {what}", "$dim"))
            if longer.cell_length + 1 > room:
                break
            shown = longer
        return shown

    def _state(self) -> Content:
        if self.is_paused:
            return Content.styled("paused: p goes on", "bold $warn")
        return Content.styled(self.version, "$dim")
