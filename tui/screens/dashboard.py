"""The one screen: tabs, and the view of one of them. Hands each frame to its widgets; draws nothing."""

from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.reactive import reactive
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from tui.calls import ApplianceCalls
from tui.client import Outage, Sighting
from tui.frame import Frame, View
from tui.targets import Targets
from tui.views.chat_view import ChatView
from tui.views.kv_view import KVView
from tui.views.logs_view import LogsView
from tui.views.models_view import ModelsView
from tui.views.quality_view import QualityView
from tui.views.requests_view import RequestsView
from tui.widgets.card import Card, Welcome
from tui.widgets.header import Header
from tui.widgets.key_bar import KeyBar
from tui.widgets.kv_panel import KVPanel
from tui.widgets.latency_panel import LatencyPanel
from tui.widgets.machine_panel import MachinePanel, terse_facts
from tui.widgets.request_counts import RequestLine, RequestPanel
from tui.widgets.sequence_table import SequenceHeading, SequenceTable
from tui.widgets.tab_bar import TabBar
from tui.widgets.throughput_panel import ThroughputPanel


class DashboardScreen(Screen[None]):
    """Owns the frame. While paused, frames are still kept up to date but not shown."""

    frame: reactive[Frame] = reactive(Frame(), always_update=True)
    is_paused: reactive[bool] = reactive(False)
    active: reactive[str] = reactive("live")

    def __init__(self, first: Frame, calls: ApplianceCalls) -> None:
        super().__init__()
        self._latest = first
        self._calls = calls
        self._alarmed: frozenset[str] = frozenset()
        self.set_reactive(DashboardScreen.frame, first)

    def compose(self) -> ComposeResult:
        """Every widget is there from the start; classes on the screen decide which are seen."""
        yield Header(id="header").data_bind(DashboardScreen.frame)
        yield TabBar(id="tabs").data_bind(DashboardScreen.active)
        with ContentSwitcher(initial="live", id="body"):
            with Vertical(id="live"):
                yield from self._live()
            yield RequestsView(self._calls, id="requests-view").data_bind(DashboardScreen.frame)
            yield ModelsView(self._calls, id="models-view").data_bind(DashboardScreen.frame)
            yield KVView(id="kv-view").data_bind(DashboardScreen.frame)
            yield QualityView(id="quality-view").data_bind(DashboardScreen.frame)
            yield LogsView(self._calls, id="logs-view").data_bind(DashboardScreen.frame)
            yield ChatView(self._calls, id="chat-view").data_bind(DashboardScreen.frame)
        yield KeyBar(id="keys").data_bind(DashboardScreen.is_paused, DashboardScreen.active)

    def _live(self) -> ComposeResult:
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

    def show_tab(self, name: str) -> None:
        """Puts the view of that tab in the middle."""
        self.active = name
        self.query_one("#body", ContentSwitcher).current = name if name == "live" else f"{name}-view"
        if name == "live":
            self.query_one("#table").focus()
        elif name in ("kv", "quality"):
            self.set_focus(None)

    def set_targets(self, targets: Targets) -> None:
        """From now on, even while paused."""
        self._latest = replace(self._latest, targets=targets)
        self.frame = replace(self.frame, targets=targets)

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
        self._sound(frame)
        if frame.snapshot is not None:
            self.query_one(KeyBar).version = f"appliance {frame.snapshot.version}"

    def _sound(self, frame: Frame) -> None:
        """Red borders while a target is missed; one bell when that begins."""
        missed = frozenset(alarm.name for alarm in frame.targets.alarms(frame.snapshot))
        for name in ("ttft", "tpot"):
            self.query_one(f"#{name}").set_class(name in missed, "-alarm")
        if missed - self._alarmed:
            self.app.bell()
        self._alarmed = missed
