"""The bottom line: what the keys do, and what needs to be said now."""

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tui.drawing import spread

_KEYS = (("q", "quit"), ("d", "dark/light"), ("p", "pause"), ("↑↓", "rows"), ("?", "help"))


class KeyBar(Widget):
    """A notice, while there is one, takes the place of the keys."""

    notice: reactive[str] = reactive("")
    is_paused: reactive[bool] = reactive(False)
    version: reactive[str] = reactive("")

    def render(self) -> Content:
        """One line of the widget's width."""
        width = self.content_size.width
        if self.notice:
            return Content.styled(self.notice, "bold $warn").truncate(width, ellipsis=True)
        return spread(self._keys(), self._state(), width)

    def _keys(self) -> Content:
        parts = [Content.assemble((key, "bold $ink"), (f" {what}", "$dim")) for key, what in _KEYS]
        return Content("   ").join(parts)

    def _state(self) -> Content:
        if self.is_paused:
            return Content.styled("paused: p goes on", "bold $warn")
        return Content.styled(self.version, "$dim")
