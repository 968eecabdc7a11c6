"""The one screen: panels above, sequences below. Hands each frame to its widgets; draws nothing itself."""

from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.reactive import reactive
from textual.screen import Screen

from tui.client import Outage, Sighting
from tui.frame import Frame, View
from tui.widgets.card import Card, Welcome
from tui.widgets.header import Header
from tui.widgets.key_bar import KeyBar
from tui.widgets.kv_panel import KVPanel
from tui.widgets.latency_panel import LatencyPanel
from tui.widgets.machine_panel import MachinePanel, terse_facts
from tui.widgets.request_counts import RequestLine, RequestPanel
from tui.widgets.sequence_table import SequenceHeading, SequenceTable
from tui.widgets.throughput_panel import ThroughputPanel


class DashboardScreen(Screen[None]):
    """Owns the frame. While paused, frames are still kept up to date but not shown."""

    frame: reactive[Frame] = reactive(Frame(), always_update=True)
    is_paused: reactive[bool] = reactive(False)

    def __init__(self, first: Frame) -> None:
        super().__init__()
        self._latest = first
        self.set_reactive(DashboardScreen.frame, first)

    def compose(self) -> ComposeResult:
        """Every widget is there from the start; classes on the screen decide which are seen."""
        yield Header(id="header").data_bind(DashboardScreen.frame)
        yield Card(id="card").data_bind(DashboardScreen.frame)
        with Container(id="panels"):
            yield LatencyPanel(
                "Time to first token", id="ttft", now=lambda now: now.ttft, then=lambda then: then.ttft
            ).data_bind(DashboardScreen.frame)
            yield LatencyPanel(
                "Time per output token", id="tpot", now=lambda now: now.tpot, then=lambda then: then.tpot
            ).data_bind(DashboardScreen.frame)
            yield ThroughputPanel(id="throughput").data_bind(DashboardScreen.frame)
            with Container(id="memory"):
                yield KVPanel(id="kv").data_bind(DashboardScreen.frame)
                yield MachinePanel(id="machine").data_bind(DashboardScreen.frame)
                yield RequestPanel(id="requests").data_bind(DashboardScreen.frame)
        with Vertical(id="sequences"):
            yield Welcome(id="welcome").data_bind(DashboardScreen.frame)
            yield RequestLine(id="request-line").data_bind(DashboardScreen.frame)
            yield SequenceHeading(id="heading").data_bind(DashboardScreen.frame)
            yield SequenceTable(id="table").data_bind(DashboardScreen.frame)
        yield KeyBar(id="keys").data_bind(is_paused=DashboardScreen.is_paused)

    def on_mount(self) -> None:
        """Titles that stand in borders of containers."""
        self.query_one("#memory").border_title = "Memory"
        self.query_one("#sequences").border_title = "Sequences"
        self._arrange(self.frame)

    def take(self, event: Sighting | Outage) -> None:
        """A snapshot or an outage: kept always, shown unless paused."""
        self._latest = self._latest.after(event)
        if not self.is_paused:
            self.frame = self._latest

    def toggle_pause(self) -> None:
        """Freezes what is seen, or catches up."""
        self.is_paused = not self.is_paused
        if not self.is_paused:
            self.frame = self._latest

    def say(self, notice: str) -> None:
        """A line in place of the keys."""
        self.query_one(KeyBar).notice = notice

    def watch_frame(self, frame: Frame) -> None:
        """Rearranges what stands outside the widgets that the frame is bound to."""
        if self.is_mounted:
            self._arrange(frame)

    def _arrange(self, frame: Frame) -> None:
        """The view decides what is seen; a stale frame is dimmed."""
        for view in View:
            self.set_class(frame.view is view, f"-{view.value}")
        self.set_class(frame.is_stale, "-stale")
        self.query_one("#memory").border_subtitle = terse_facts(frame) if self.has_class("-short") else ""
        if frame.snapshot is not None:
            self.query_one(KeyBar).version = f"appliance {frame.snapshot.version}"
