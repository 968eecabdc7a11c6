"""The keys and the words of the dashboard, over the dashboard."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.tabs import TABS

_KEYS = (
    ("1 to 7, [ ], F1 to F7", "the tabs; a click as well; F keys while typing"),
    ("↑ ↓ PgUp PgDn Home End", "move through rows and lines"),
    ("t", "targets: alarm when TTFT or TPOT passes them"),
    ("p", "pause the display, not the appliance"),
    ("d", "dark or light"),
    ("q, Ctrl-C", "quit; twice stops at once"),
    ("?, F8, Esc", "this help; Esc in the chat stops or leaves"),
)
_WORDS = (
    ("Time to first token", "request in to first token out, queue included"),
    ("Time per output token", "a request's mean gap between its tokens"),
    ("P50 P95 P99", "half, 95% and 99% of requests are faster"),
    ("KV used, cached, free", "blocks in use, reusable, empty"),
    ("KV waste", "places in used blocks that hold no token"),
    ("prefix hits", "prompt tokens that needed no computing again"),
    ("preempted", "set back to make room, continued later"),
    ("CPU", "100% is one core"),
)
_LABEL_WIDTH = 24


class HelpScreen(ModalScreen[None]):
    """Any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f8,q,enter", "dismiss", show=False),
        # A screen that lies over others hides the application's keys.
        *(Binding(f"{one.key},f{one.key}", f"app.show_tab('{one.name}')", show=False) for one in TABS),
    ]

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
