"""Server and dashboard in one process on a pseudo-terminal: every signal gives the terminal back."""

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from contextlib import suppress

import pytest

from appliance.catalog import ModelFile
from product.conftest import CHECKOUT, MODELS_DIR

pytestmark = pytest.mark.product
SHOWN_WHEN_READY = b"smollm2"


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_server_and_dashboard_and_restores_the_terminal(
    model_file: ModelFile, number: signal.Signals, exit_code: int
) -> None:
    assert model_file.path.is_file()
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    screen = bytearray()
    is_drawn = threading.Event()

    def read_screen() -> None:
        # The other end's closing is an error here, not an end of file.
        with suppress(OSError):
            while chunk := os.read(ours, 65536):
                screen.extend(chunk)
                if SHOWN_WHEN_READY in screen:
                    is_drawn.set()

    reader = threading.Thread(target=read_screen, daemon=True)
    reader.start()
    process = subprocess.Popen(
        [sys.executable, "-m", "appliance", "serve", "--port", "0", "--context", "2048"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=CHECKOUT,
        env={**os.environ, "APPLIANCE_MODELS_DIR": str(MODELS_DIR), "TERM": "xterm-256color"},
    )
    assert is_drawn.wait(90), bytes(screen[-2000:])
    process.send_signal(number)
    assert process.wait(timeout=30) == exit_code
    assert termios.tcgetattr(theirs) == before
    os.close(theirs)
    reader.join()
    os.close(ours)
