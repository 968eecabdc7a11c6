"""Runs the dashboard on this terminal and gives it back whole. Knows how a process ends; draws nothing."""

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from tui.app import DashboardApp
from tui.client import ApplianceClient
from tui.quit_hook import QuitHook
from tui.targets import Targets
from tui.terminal import caught_signals, restored_terminal

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_NO_TERMINAL = 2
_SIGNALLED = 128


def run_dashboard(
    base_url: str,
    api_key: str | None = None,
    *,
    targets: Targets | None = None,
    quit_hook: QuitHook | None = None,
    on_exit: Callable[[], None] | None = None,
) -> int:
    """Shows the appliance at `base_url` until the operator leaves; call it from the main thread.

    With a `quit_hook` the appliance lives in this process: the first q, Ctrl-C, SIGINT or SIGTERM drains it,
    the second stops it, and the dashboard leaves when it is drained. SIGHUP leaves at once, without the hook:
    there is no terminal to wait on. `on_exit` is called last, when the terminal is as it was.

    Returns 0, 1 after a failure of its own, 2 without a terminal, 130 when stopped by a second Ctrl-C, and
    128 + the number of the signal that ended it. After 1 and 2 one line on stderr says why.
    """
    try:
        if not (_is_terminal(sys.__stdin__) and _is_terminal(sys.__stderr__)):
            _say("the dashboard needs a terminal; run it in one, or serve with --no-dashboard")
            return EXIT_NO_TERMINAL
        return _run(DashboardApp(ApplianceClient(base_url, api_key), quit_hook, targets))
    except Exception as error:  # the outermost frame of the dashboard
        _say(f"the dashboard failed: {_in_one_line(error)}")
        return EXIT_FAILED
    finally:
        if on_exit is not None:
            on_exit()


def _run(app: DashboardApp) -> int:
    with restored_terminal():
        exit_code = asyncio.run(_run_until_told(app))
    if app.failure is not None:
        _say(f"the dashboard failed: {_in_one_line(app.failure)}")
        return EXIT_FAILED
    return exit_code


async def _run_until_told(app: DashboardApp) -> int:
    loop = asyncio.get_running_loop()

    def tell(number: int) -> None:
        loop.call_soon_threadsafe(_leave, app, number)

    with caught_signals(tell):
        exit_code = await app.run_async()
    return EXIT_FAILED if exit_code is None else exit_code


def _leave(app: DashboardApp, number: int) -> None:
    # By the app's own queue: a timer, which leaving sets, can only be made inside it.
    if number == signal.SIGINT:
        app.call_later(app.leave)
    elif number == signal.SIGTERM:
        app.call_later(app.leave, _SIGNALLED + number)
    else:
        app.exit(_SIGNALLED + number)


def _is_terminal(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty())


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _say(line: str) -> None:
    # Without a terminal there may be no one to tell.
    with suppress(OSError, ValueError):
        sys.stderr.write(f"appliance: {line}\n")
