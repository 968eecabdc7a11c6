"""Our side of a worker: starts the process, sends one command at a time, waits for its answer."""

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

WORKERS = Path(__file__).parent / "workers"


class WorkerFailed(Exception):
    """The process ended, or a command raised; the message says which and where its log is."""


class WorkerProcess:
    """One engine in a process of its own. It works only while a call waits for it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log_folder: Path,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log_path = log_folder / f"{name.replace(' ', '-')}.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **(environment or {})},
            )

    def wait_ready(self) -> None:
        """Wait until it has loaded its model. Raises WorkerFailed."""
        self._read()

    def call(self, command: str, **arguments: object) -> Any:  # each command has its own kind of answer
        """Send a command and wait. Raises WorkerFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it ended by itself, a command of ours unread
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.name}: {answer['error']}; its log is {self._log_path}")
        return answer["result"]

    def _ended(self) -> WorkerFailed:
        return WorkerFailed(f"{self.name} ended with {self._process.wait()}; its log is {self._log_path}")
