"""The tabs of the dashboard: names, keys and what their keys do. Knows no widgets."""

from dataclasses import dataclass

Keys = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """`name` is the id of its view; `keys` are those that only it has, or all of one in which one types."""

    key: str
    name: str
    title: str
    keys: Keys = ()
    takes_text: bool = False


TABS = (
    Tab(key="1", name="live", title="Live", keys=(("↑↓", "rows"), ("t", "targets"), ("p", "pause"))),
    Tab(key="2", name="requests", title="Requests", keys=(("↑↓", "choose"), ("p", "pause"))),
    Tab(
        key="3",
        name="models",
        title="Models",
        keys=(("↑↓", "choose"), ("Enter", "load"), ("u", "unload"), ("g", "get a model")),
    ),
    Tab(key="4", name="kv", title="KV", keys=(("p", "pause"),)),
    Tab(key="5", name="quality", title="Quality"),
    Tab(key="6", name="logs", title="Logs", keys=(("↑↓", "scroll"), ("End", "newest"), ("w", "warnings"))),
    Tab(
        key="7",
        name="chat",
        title="Chat",
        keys=(("Enter", "send"), ("Esc", "stop/leave"), ("n", "new"), ("F1-F7", "tabs"), ("F8", "help")),
        takes_text=True,
    ),
)
HELP = Tab(key="?", name="help", title="Help")


def tab(name: str) -> Tab:
    """The tab of that name."""
    return next(one for one in TABS if one.name == name)
