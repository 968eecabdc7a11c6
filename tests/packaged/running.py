"""Starts the built file as a person's system would: an environment with a home folder in it, nothing else."""

import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

READY_S = 180.0


def environment(home: Path, unpack_to: Path | None = None) -> dict[str, str]:
    values = {"HOME": str(home)}
    return values | ({"APPLIANCE_UNPACK_TO": str(unpack_to)} if unpack_to else {})


def run(
    executable: Path, *arguments: str, home: Path, unpack_to: Path | None = None, inside: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `inside` comes before it, such as `chroot FOLDER`."""
    return subprocess.run(
        [*inside, str(executable), *arguments],
        env=environment(home, unpack_to),
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(
    executable: Path,
    home: Path,
    unpack_to: Path | None = None,
    *,
    inside: Sequence[str] = (),
    output: IO[bytes] | int = subprocess.DEVNULL,
    errors: IO[bytes] | None = None,
    more: dict[str, str] | None = None,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve on a free port, killed at the end. `output`, `errors`: its streams; `more`: of environment."""
    port = free_port()
    process = subprocess.Popen(
        [*inside, str(executable), "serve", "--port", str(port)],
        env=environment(home, unpack_to) | (more or {}),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        body: bytes = response.read()
        return body


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "it ended; its words are above"
        try:
            get(url)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"{url} did not answer within {READY_S:g} s")


def post(url: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        answered: dict[str, object] = json.load(response)
        return answered


def answer(url: str, **more: object) -> str:
    """What the model inside says is the capital of France."""
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 24}
    answered = post(f"{url}/v1/chat/completions", body | {"temperature": 0} | more)
    text: str = answered["choices"][0]["message"]["content"]  # type: ignore[index]
    return text
