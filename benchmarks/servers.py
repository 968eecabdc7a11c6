"""Starts a server as its users do, waits until it is ready, reads its memory, stops it."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from benchmarks.engines import CHECKOUT, Bench

OURS_HTTP = "ours, Q4_1 file"
LLAMA_HTTP = "llama-server, Q4_0"
_CLIENTS = 32
# Room for a prompt of 128 and an answer of 64 for each client, with some to spare.
_LLAMA_SEQUENCE_TOKENS = 512
_READY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that answers."""

    name: str
    url: str
    model: str
    process_id: int

    def resident_bytes(self) -> int:
        """Physical memory in use now."""
        return sum(resident for _, resident in self._mappings())

    def resident_pool_bytes(self) -> int | None:
        """Physical memory that the KV pool takes of it; None where the server does not tell the pool's size.

        The pool is two allocations, keys and values, far larger than any other.
        """
        answer = httpx.get(f"{self.url}/system/v1/snapshot")
        if answer.status_code != 200:
            return None
        pool_bytes = answer.json()["kv"]["pool_bytes"]
        return sum(resident for size, resident in self._mappings() if size > 0.45 * pool_bytes)

    def _mappings(self) -> list[tuple[int, int]]:
        """Size and resident part of each mapping, in bytes."""
        table = Path(f"/proc/{self.process_id}/smaps").read_text()
        sizes, residents = (
            re.findall(rf"^{name}: +(\d+) kB", table, re.MULTILINE) for name in ("Size", "Rss")
        )
        return [(int(size) * 1024, int(rss) * 1024) for size, rss in zip(sizes, residents, strict=True)]


@contextmanager
def running(bench: Bench, name: str) -> Iterator[Server]:
    """Start the server of that name and stop it afterwards."""
    start = _start_ours if name == OURS_HTTP else _start_llama
    with (bench.log_folder / f"{name.replace(' ', '-')}-server.log").open("wb") as log:
        process, url = start(bench, log)
        try:
            wait_healthy(process, url)
            model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
            yield Server(name=name, url=url, model=model, process_id=process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start_ours(bench: Bench, log: BinaryIO) -> tuple["subprocess.Popen[bytes]", str]:
    port = free_port()
    flags = ("--port", str(port), "--threads", str(bench.threads), "--no-dashboard")
    command = [sys.executable, "-m", "appliance", "serve", str(bench.model), *flags]
    return spawn(command, log), f"http://127.0.0.1:{port}"


def _start_llama(bench: Bench, log: BinaryIO) -> tuple["subprocess.Popen[bytes]", str]:
    port = free_port()
    threads = str(bench.threads)
    command = [
        *(str(bench.peers.llama_server), "-m", str(bench.q4_0), "--host", "127.0.0.1", "--port", str(port)),
        *("--parallel", str(_CLIENTS), "-c", str(_CLIENTS * _LLAMA_SEQUENCE_TOKENS), "-cb"),
        *("-t", threads, "-tb", threads, "--no-ui"),
        # No prompt comes twice: keeping them would only cost time.
        *("--cache-ram", "0", "--no-cache-prompt"),
    ]
    return spawn(command, log), f"http://127.0.0.1:{port}"


def spawn(command: list[str], log: BinaryIO) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=CHECKOUT,
    )


def wait_healthy(process: "subprocess.Popen[bytes]", url: str) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode} before it was ready")
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server was not ready after {_READY_TIMEOUT_S:g} s")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
