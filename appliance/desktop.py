"""A start without a terminal: whether it is one, the browser, errors that a person sees. Knows no server."""

import html
import os
import subprocess
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from appliance import paths
from appliance.other_programs import environment_of_others

_ERROR_FILE = "could-not-start.html"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>The appliance could not start</title>
<style>body{{font:18px/1.5 system-ui,sans-serif;max-width:40em;margin:4em auto;padding:0 1em}}
</style><h1>The appliance could not start</h1><p>{message}</p>
<p>A flag <code>--name value</code> can also be a line <code>name = value</code> in
<code>{settings}</code>.</p><p>Its log: <code>{log}</code></p></html>
"""
_BROWSERS = ("xdg-open", "x-www-browser", "sensible-browser", "chromium", "firefox")
# What shows a text on a desktop; each gets the text as its last argument.
_DIALOGS = (
    ("zenity", "--info", "--no-markup", "--text"),
    ("kdialog", "--msgbox"),
    ("xmessage", "-center"),
    ("notify-send", "Inference Appliance"),
)
# A program that fails does so at once; one that lives longer shows something.
_FAILS_WITHIN_S = 3.0


def is_desktop_start() -> bool:
    """Whether a file manager started this: a screen, and no terminal to write to."""
    if any(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return False
    if sys.platform in ("win32", "darwin"):
        return paths.is_frozen()
    has_screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return has_screen and paths.is_frozen()


def open_page(url: str, *, otherwise: str) -> None:
    """Open the user's browser; where there is none that starts, show `otherwise` in a dialog."""
    if sys.platform != "linux":
        webbrowser.open(url)
    elif not any(_starts([browser, url]) for browser in _BROWSERS):
        _show_dialog(otherwise)


def show_failure(message: str) -> None:
    """Show why nothing was started: a page, since there is no terminal; a dialog where there is no disk."""
    page = paths.state_dir() / _ERROR_FILE
    values = {"message": message, "settings": str(paths.settings_file()), "log": str(log_file())}
    text = _PAGE.format(**{name: html.escape(value) for name, value in values.items()})
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, "utf-8")
    except OSError:
        _show_dialog(message)
    else:
        open_page(page.as_uri(), otherwise=message)


def log_file() -> Path:
    return paths.log_dir() / "appliance.log"


def _show_dialog(text: str) -> None:
    any(_starts([*dialog, text]) for dialog in _DIALOGS)


def _starts(command: Sequence[str]) -> bool:
    """Start a program and leave it to itself. False where it is missing or fails at once."""
    try:
        process = subprocess.Popen(  # noqa: S603  (names from fixed lists)
            command,
            env=environment_of_others(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    try:
        return process.wait(_FAILS_WITHIN_S) == 0
    except subprocess.TimeoutExpired:
        return True
