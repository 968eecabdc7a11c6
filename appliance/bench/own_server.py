"""An appliance of our own for the time of a run: started, awaited, stopped. Knows no model."""

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

import httpx

from appliance.bench.session import ServerUnusable

_START_S = 600.0
_STOP_S = 15.0
_SHOWN_CHARS = 1000


@contextmanager
def own_server(program: Sequence[str], model: str) -> Iterator[str]:
    """Serve a model on a free port; gives the URL once it is ready. Raises ServerUnusable."""
    command = [*program, "serve", model, "--port", "0", "--no-dashboard"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603  # our own
        try:
            yield _await_ready(process, log)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _await_ready(process: "subprocess.Popen[str]", log: IO[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    url = line.removeprefix("Listening on ").partition(",")[0].strip()
    until_s = time.monotonic() + _START_S
    while process.poll() is None and url and time.monotonic() < until_s:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK:
                return url
        time.sleep(0.1)
    log.seek(0)
    raise ServerUnusable(f"the appliance did not start: {log.read()[-_SHOWN_CHARS:].strip() or line}")
