"""Asks the system for what follows in a mapped file, so that reading goes on while weights are packed.

Without that every new page waits for the disk, a few at a time. Knows places in a file; knows no format.
"""

import ctypes
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_AHEAD_BYTES = 64 << 20
# Asked for at once: fewer calls, and still well ahead.
_STEP_BYTES = 16 << 20
# What the system is told in one call. It finds room for all of that before the disk is asked for any.
_ADVICE_BYTES = 2 << 20
# Windows has no such advice.
_WILL_NEED: int | None = getattr(mmap, "MADV_WILLNEED", None)
# (place, bytes): the system may read them now
Advise = Callable[[int, int], None]


class ReadAhead:
    """Follows whoever uses a mapping from its start to its end; jumps are followed too."""

    def __init__(self, data: mmap.mmap, ask: Advise | None = None) -> None:
        """`ask` returns at once; by default the system is told by a thread."""
        self._size = len(data)
        self._ask = BackgroundAdvice(_system_advice(data), self._size) if ask is None else ask
        self._start = self._end = 0  # asked for last

    def use(self, start: int, end: int) -> None:
        """Say that bytes `start` to `end` are about to be read."""
        wanted = min(end + _AHEAD_BYTES, self._size)
        is_after = self._start <= start <= self._end
        if is_after and (wanted <= self._end or wanted < min(self._end + _STEP_BYTES, self._size)):
            return
        begin = self._end if is_after else start
        begin -= begin % mmap.PAGESIZE
        if begin < wanted:
            self._ask(begin, wanted - begin)
        self._start, self._end = start, wanted


class BackgroundAdvice:
    """Passes advice on from a thread of its own, in the order given, and ends it with the file's last bytes.

    Advice takes time: the system finds memory for the pages, and waits where the disk's queue is full.
    Without a thread whoever packs weights would wait too, on every core.
    """

    def __init__(self, advise: Advise, size: int) -> None:
        self._advise = advise
        self._size = size
        self._worker: ThreadPoolExecutor | None = None

    def __call__(self, place: int, num_bytes: int) -> None:
        worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        worker.submit(self._pass_on, place, place + num_bytes)
        self._worker = worker
        if place + num_bytes >= self._size:
            self.close(wait=False)

    def close(self, *, wait: bool = True) -> None:
        """End the thread once all is passed on; more advice starts another."""
        if self._worker is not None:
            self._worker.shutdown(wait=wait)
            self._worker = None

    def _pass_on(self, begin: int, end: int) -> None:
        for place in range(begin, end, _ADVICE_BYTES):
            self._advise(place, min(_ADVICE_BYTES, end - place))


def _system_advice(data: mmap.mmap) -> Advise:
    """Return madvise of a mapping. Python's own would hold the interpreter's lock meanwhile."""
    if _WILL_NEED is None:
        return lambda *_: None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    view = np.frombuffer(data, np.uint8)  # held by what is returned, so that the address stays good
    # It is only advice: whether it was taken does not matter.
    return lambda place, num_bytes: madvise(view.ctypes.data + place, num_bytes, _WILL_NEED)
