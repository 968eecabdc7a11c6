"""The dashboard as an application: follows one appliance, shows it, and leaves when asked.

Knows HTTP only through its client, and the process it lives in only through a QuitHook.
"""

import logging
import sys
from contextlib import aclosing
from typing import ClassVar

from rich.console import RenderableType
from textual import work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.worker import WorkerFailed

from tui.client import ApplianceClient
from tui.frame import Frame
from tui.messages import ApplianceSeen
from tui.palette import DARK, LIGHT, THEMES
from tui.quit_hook import QuitHook
from tui.screens.dashboard import DashboardScreen
from tui.screens.help import HelpScreen
from tui.screens.target_dialog import TargetDialog
from tui.tabs import HELP, TABS
from tui.targets import Targets
from tui.widgets.tab_bar import TabBar

EXIT_STOPPED = 130  # as a shell says "ended by Ctrl-C"

_DRAINING = "Draining: requests that run are being finished. Ctrl-C again stops at once."
_DRAIN_POLL_S = 0.1

# Made for 80x24 and more; below, the table goes. The stylesheet says what each class changes.
_WIDTHS: list[tuple[int, str]] = [(0, "-tiny"), (80, "-compact"), (100, "-medium"), (160, "-wide")]
_HEIGHTS: list[tuple[int, str]] = [(0, "-low"), (24, "-short"), (34, "-tall"), (46, "-huge")]

_logger = logging.getLogger(__name__)


class DashboardApp(App[int]):
    """Returns the exit code; None if it failed, and then `failure` says how."""

    TITLE = "appliance"
    CSS_PATH = "dashboard.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = _WIDTHS
    VERTICAL_BREAKPOINTS = _HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "quit"),
        Binding("ctrl+c,ctrl+q", "leave", "quit", show=False, priority=True),
        Binding("d", "toggle_theme", "dark/light"),
        Binding("p", "pause", "pause"),
        Binding("question_mark,f8", "help", "help"),
        Binding("t", "targets", "targets"),
        *(Binding(f"{one.key},f{one.key}", f"show_tab('{one.name}')", one.title, show=False) for one in TABS),
        Binding("right_square_bracket,ctrl+pagedown", "turn(1)", "next tab", show=False),
        Binding("left_square_bracket,ctrl+pageup", "turn(-1)", "previous tab", show=False),
    ]

    def __init__(
        self, client: ApplianceClient, quit_hook: QuitHook | None = None, targets: Targets | None = None
    ) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self._client = client
        self._quit_hook = quit_hook
        self._targets = targets or Targets()
        self._is_leaving = False
        self._leave_code = 0
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = DARK

    def get_default_screen(self) -> Screen[None]:
        """The only screen but for help."""
        first = Frame(
            address=self._client.base_url, asks_for_key=self._client.has_api_key, targets=self._targets
        )
        return DashboardScreen(first, self._client.calls)

    def on_mount(self) -> None:
        """Starts to follow the appliance."""
        self._follow()

    @work(exclusive=True)
    async def _follow(self) -> None:
        async with self._client, aclosing(self._client.watch()) as events:
            async for event in events:
                self.post_message(ApplianceSeen(event))

    def on_appliance_seen(self, message: ApplianceSeen) -> None:
        """Hands the news to the dashboard, even while help lies over it."""
        self.dashboard.take(message.event)

    @property
    def dashboard(self) -> DashboardScreen:
        """The screen below all others."""
        screen = self.screen_stack[0]
        assert isinstance(screen, DashboardScreen)
        return screen

    def action_toggle_theme(self) -> None:
        """Dark to light and back."""
        self.theme = LIGHT if self.theme == DARK else DARK

    def action_pause(self) -> None:
        """Freezes the display."""
        self.dashboard.toggle_pause()

    def action_help(self) -> None:
        """Shows the keys."""
        self.push_screen(HelpScreen())

    def action_show_tab(self, name: str) -> None:
        """A tab by its name, even from the help."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.dashboard.show_tab(name)

    def action_turn(self, step: int) -> None:
        """The tab beside the present one."""
        names = [one.name for one in TABS]
        self.action_show_tab(names[(names.index(self.dashboard.active) + step) % len(names)])

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        """A click on a tab."""
        if message.name == HELP.name:
            self.action_help()
        else:
            self.action_show_tab(message.name)

    def action_targets(self) -> None:
        """Asks for the latencies to hold."""
        self.push_screen(TargetDialog(self.dashboard.frame.targets), self._take_targets)

    def _take_targets(self, targets: Targets | None) -> None:
        if targets is not None:
            self.dashboard.set_targets(targets)

    def action_leave(self) -> None:
        """A key asks to quit."""
        self.leave()

    def leave(self, exit_code: int = 0) -> None:
        """Asked once, drains and then leaves with `exit_code`; asked again, stops and leaves at once."""
        if self._quit_hook is None:
            self.exit(exit_code)
        elif self._is_leaving:
            self._quit_hook.stop()
            self.exit(exit_code or EXIT_STOPPED)
        else:
            self._is_leaving = True
            self._leave_code = exit_code
            self._quit_hook.drain()
            self.dashboard.say(_DRAINING)
            self.set_interval(_DRAIN_POLL_S, self._leave_if_drained)

    def _leave_if_drained(self) -> None:
        assert self._quit_hook is not None
        if self._quit_hook.is_drained():
            self.exit(self._leave_code)

    def _fatal_error(self) -> None:
        """Textual's last word on an exception: ours is one line, said by `run_dashboard`, not a page."""
        self._fail(sys.exception())

    def panic(self, *renderables: RenderableType) -> None:
        """As above, for errors that can draw themselves: a failed worker, a stylesheet, a lost terminal."""
        first = renderables[0] if renderables else None
        self._fail(first if isinstance(first, BaseException) else sys.exception())

    def _fail(self, error: BaseException | None) -> None:
        cause = error.error if isinstance(error, WorkerFailed) else error
        self.failure = self.failure or cause or RuntimeError("the terminal was lost")
        _logger.info("the dashboard failed", exc_info=self.failure)
        self._close_messages_no_wait()
