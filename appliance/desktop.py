"""A start without a terminal: whether it is one, the browser, errors that a person sees. Knows no server."""

import html
import os
import subprocess
import sys
import webbrowser
from pathlib import Path

from appliance import paths

_ERROR_FILE = "could-not-start.html"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>The appliance could not start</title>
<style>body{{font:18px/1.5 system-ui,sans-serif;max-width:40em;margin:4em auto;padding:0 1em}}
</style><h1>The appliance could not start</h1><p>{message}</p><p>Its log: <code>{log}</code></p></html>
"""


def is_desktop_start() -> bool:
    """Whether a file manager started this: a screen, and no terminal to write to."""
    if sys.stdin is not None and sys.stdin.isatty():
        return False
    if sys.stdout is not None and sys.stdout.isatty():
        return False
    if sys.platform in ("win32", "darwin"):
        return paths.is_frozen()
    has_screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return has_screen and paths.is_frozen()


def open_page(url: str) -> None:
    """Open the user's browser; in vain where there is none."""
    if sys.platform != "linux":
        webbrowser.open(url)
        return
    environment = _environment_of_others()
    for program in ("xdg-open", "x-www-browser", "sensible-browser", "chromium", "firefox"):
        try:
            subprocess.Popen(  # noqa: S603  (names from a fixed list)
                [program, url],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            continue
        return


def show_failure(message: str) -> None:
    """Show why nothing was started: a page, since there is no terminal."""
    page = paths.state_dir() / _ERROR_FILE
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_PAGE.format(message=html.escape(message), log=html.escape(str(log_file()))), "utf-8")
    except OSError:
        return  # the message is in the log, or there is no disk for either
    open_page(page.as_uri())


def log_file() -> Path:
    return paths.log_dir() / "appliance.log"


def _environment_of_others() -> dict[str, str]:
    """The environment as it was before the executable pointed the loader at its own libraries."""
    environment = dict(os.environ)
    original = environment.pop("LD_LIBRARY_PATH_ORIG", None)
    if paths.is_frozen():
        environment.pop("LD_LIBRARY_PATH", None)
    if original:
        environment["LD_LIBRARY_PATH"] = original
    return environment
