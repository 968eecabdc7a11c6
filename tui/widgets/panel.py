"""The base of every panel: a frame comes in, lines of text go out. Knows no data of its own."""

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tui.frame import Frame


class Panel(Widget):
    """Shows one frame. Subclasses say the lines for the cells they have."""

    frame: reactive[Frame] = reactive(Frame(), always_update=True)

    def lines(self) -> list[Content]:
        """The text of the panel's inside, `content_size` in cells. Lines past its height are cut."""
        raise NotImplementedError

    def render(self) -> Content:
        """The lines for the present size."""
        return Content("\n").join(self.lines()[: self.content_size.height])
