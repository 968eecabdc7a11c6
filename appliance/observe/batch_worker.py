"""Hands what is added to a slow writer in batches, from a thread of its own. Knows not what it hands over.

Never blocks who adds: what cannot be written in time is dropped and counted.
"""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_BATCH_S = 2.0
_ItemT = TypeVar("_ItemT")


class BatchWorker(Generic[_ItemT]):
    """Any thread may add; `start` begins to write, `close` writes what is left.

    `write` gets a batch and returns False when nothing more shall be written.
    """

    def __init__(self, name: str, write: Callable[[list[_ItemT]], bool], *, most_queued: int) -> None:
        self._write = write
        self._queue: queue.Queue[_ItemT] = queue.Queue(most_queued)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.num_dropped = 0

    def start(self) -> None:
        self._thread.start()

    def add(self, item: _ItemT) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_closing.wait(_BATCH_S)
            if (items := self._taken()) and not self._write(items):
                return

    def _taken(self) -> list[_ItemT]:
        taken: list[_ItemT] = []
        while not self._queue.empty():
            taken.append(self._queue.get_nowait())
        return taken
