"""The keys and the words of the dashboard, over the dashboard."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

_KEYS = (
    ("q, Ctrl-C", "quit; twice stops at once"),
    ("d", "dark or light"),
    ("p", "pause the display, not the appliance"),
    ("↑ ↓ PgUp PgDn Home End", "move through the sequences"),
    ("Esc, ?", "close this help"),
)
_WORDS = (
    ("Time to first token", "request in to first token out, queue included"),
    ("Time per output token", "a request's mean gap between its tokens"),
    ("P50 P95 P99", "half, 95% and 99% of requests are faster"),
    ("KV used, cached, free", "blocks in use, reusable, empty"),
    ("preempted", "set back to make room, continued later"),
    ("CPU", "100% is one core"),
)
_LABEL_WIDTH = 24


class HelpScreen(ModalScreen[None]):
    """Any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", show=False)]

    def compose(self) -> ComposeResult:
        """Two short lists."""
        text = Content("\n").join([_section("Keys", _KEYS), Content(""), _section("Words", _WORDS)])
        box = Static(text, id="help")
        box.border_title = "Help"
        yield box


def _section(title: str, rows: tuple[tuple[str, str], ...]) -> Content:
    lines = [Content.styled(title, "bold $p50")]
    lines += [Content.assemble((f"{name:<{_LABEL_WIDTH}}", "$ink"), (text, "$dim")) for name, text in rows]
    return Content("\n").join(lines)
