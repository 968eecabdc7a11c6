"""Leaving: the hook, the exit codes, and a real terminal that must be whole afterwards."""

import http.server
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tui.run import EXIT_NO_TERMINAL, run_dashboard

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from tui.run import run_dashboard
if sys.argv[2] == "broken":
    from tui.widgets.header import Header
    def lines(self):
        raise ValueError("a panel\\nbroke")
    Header.lines = lines
sys.exit(run_dashboard(sys.argv[1]))
"""


class FakeHook:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.has_drained = False

    def drain(self) -> None:
        self.calls.append("drain")

    def is_drained(self) -> bool:
        return self.has_drained

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.mark.anyio
@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_quitting_drains_and_leaves_when_drained(shows, snapshots, key) -> None:
    hook = FakeHook()
    async with shows(snapshots.busy(), quit_hook=hook) as pilot:
        await pilot.press(key)
        await pilot.pause(0.15)
        assert pilot.app.is_running
        assert "Ctrl-C again stops at once" in pilot.app.dashboard.query_one("#keys").render().plain
        hook.has_drained = True
        await pilot.pause(0.25)
    assert hook.calls == ["drain"]
    assert pilot.app.return_value == 0


@pytest.mark.anyio
async def test_quitting_twice_stops_at_once(shows, snapshots) -> None:
    hook = FakeHook()
    async with shows(snapshots.busy(), quit_hook=hook) as pilot:
        await pilot.press("ctrl+c", "ctrl+c")
        await pilot.pause()
    assert hook.calls == ["drain", "stop"]
    assert pilot.app.return_value == 130


@pytest.mark.anyio
async def test_a_dashboard_of_another_process_leaves_at_once(shows, snapshots) -> None:
    async with shows(snapshots.busy()) as pilot:
        await pilot.press("question_mark", "ctrl+c")
        await pilot.pause()
    assert pilot.app.return_value == 0


def test_without_a_terminal_one_line_says_so(capsys, monkeypatch) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "__stdin__", nothing)
        exits: list[str] = []
        assert run_dashboard("http://127.0.0.1:1", on_exit=lambda: exits.append("left")) == EXIT_NO_TERMINAL
    assert capsys.readouterr().err.count("\n") == 1
    assert exits == ["left"]


@pytest.fixture
def appliance_url(snapshots) -> Iterator[str]:
    """A real server that answers with one snapshot for ever, by polling."""
    body = msgspec.json.encode(snapshots.busy())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_snapshot = self.path == "/system/v1/snapshot"
            self.send_response(200 if is_snapshot else 404)
            self.end_headers()
            self.wfile.write(body if is_snapshot else b"")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Terminal:
    """The dashboard on a pseudo terminal of 80 by 24."""

    def __init__(self, url: str, mode: str) -> None:
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (24, 80))
        self.modes = termios.tcgetattr(self.slave)
        self.output = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, url, mode],
            cwd=ROOT,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
        )

    def read_until(self, text: bytes, timeout_s: float = 15.0) -> None:
        end_s = time.monotonic() + timeout_s
        while text not in self.output:
            assert time.monotonic() < end_s, self.output[-2000:]
            if select.select([self.master], [], [], 0.1)[0]:
                self.output += os.read(self.master, 65536)

    def wait(self) -> int:
        """The exit code, once all output is read."""
        while self.process.poll() is None or select.select([self.master], [], [], 0.05)[0]:
            if select.select([self.master], [], [], 0.05)[0]:
                self.output += os.read(self.master, 65536)
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.mark.parametrize(
    ("ending", "exit_code"),
    [
        (b"q", 0),
        (b"\x03", 0),
        (signal.SIGINT, 0),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        ("broken", 1),
    ],
)
def test_the_terminal_is_whole_after(ending, exit_code, appliance_url) -> None:
    terminal = Terminal(appliance_url, "broken" if ending == "broken" else "")
    try:
        if ending != "broken":
            terminal.read_until(b"SmolLM2")
            assert termios.tcgetattr(terminal.slave) != terminal.modes
        if isinstance(ending, bytes):
            os.write(terminal.master, ending)
        elif isinstance(ending, signal.Signals):
            terminal.process.send_signal(ending)
        assert terminal.wait() == exit_code
        assert termios.tcgetattr(terminal.slave) == terminal.modes
        for on, off in ((b"[?1049h", b"[?1049l"), (b"[?1000h", b"[?1000l"), (b"[?25l", b"[?25h")):
            assert terminal.output.rfind(off) > terminal.output.rfind(on) > -1
        last_words = re.sub(rb"\x1b\[[^a-zA-Z]*[a-zA-Z]", b"", terminal.output.rpartition(b"[?1004l")[2])
        expected = b"appliance: the dashboard failed: ValueError: a panel broke" if exit_code == 1 else b""
        assert last_words.strip() == expected
    finally:
        terminal.close()
