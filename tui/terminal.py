"""Puts the terminal and the signal handlers back as they were found. Knows no dashboard.

Textual does the first in every orderly end; this is for the others. Where there is no termios (Windows), the
console restores its own modes.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# In order: mouse, focus and paste reports off, Kitty keys off, lines wrap, main screen, cursor, plain ink.
_RESET = (
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l\x1b[?1004l\x1b[?2004l\x1b[?2048l"
    "\x1b[<u\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"
)
_ASKS_TO_END = ("SIGINT", "SIGTERM", "SIGHUP")
_TAKEN_BY_TEXTUAL = ("SIGTSTP", "SIGCONT", "SIGWINCH")


@contextmanager
def restored_terminal() -> Iterator[None]:
    """Line discipline restored in any case; screen and reports only after an exception.

    Only then, because leaving the alternate screen a second time moves the cursor.
    """
    put_back = _remembered_modes()
    try:
        yield
    except BaseException:  # whatever ends the dashboard, the screen comes back
        _reset_screen()
        raise
    finally:
        put_back()


@contextmanager
def caught_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Calls `on_signal` for what asks a process to end, and afterwards restores every handler.

    A signal that is ignored (as `nohup` does with SIGHUP) stays ignored. Only in the main thread.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        on_signal(number)

    before = {number: signal.getsignal(number) for number in _existing(*_ASKS_TO_END, *_TAKEN_BY_TEXTUAL)}
    try:
        for number in _existing(*_ASKS_TO_END):
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            # None: it was set outside Python and cannot be put back from here.
            if handler is not None:
                signal.signal(number, handler)


def _reset_screen() -> None:
    # Textual draws on stderr; by now it may be gone.
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        with suppress(OSError, ValueError):
            sys.__stderr__.write(_RESET)
            sys.__stderr__.flush()


def _existing(*names: str) -> list[signal.Signals]:
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


def _remembered_modes() -> Callable[[], None]:
    """A call that sets the terminal's modes to the present ones; nothing where there is no terminal."""
    try:
        import termios
    except ImportError:
        return lambda: None
    if sys.__stdin__ is None or not sys.__stdin__.isatty():
        return lambda: None
    descriptor = sys.__stdin__.fileno()
    modes = termios.tcgetattr(descriptor)

    def put_back() -> None:
        # The terminal may be gone by now.
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, modes)

    return put_back
