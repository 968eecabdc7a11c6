"""Memory for KV pages as the native engine likes it: one mapping of huge pages, committed as it is used."""

import ctypes
import math
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.kv_layout import KVLayout, KVType

_HUGE_PAGE = 2 << 20
_AHEAD_BYTES = 64 << 20
# Between two huge pages, so that no step has to wait for several; shorter where steps come near. While steps
# run no more than a tenth of the time goes to this: a virtual machine may stand still for as long.
_PAUSE_S, _SHORT_PAUSE_S = 0.02, 0.001
_BUSY_PAUSE = 9  # times what a huge page took
_IDLE_AFTER_S = 0.25
_WEIGHT = 0.25  # of the newest time in the mean
_POPULATE_WRITE = 23  # of Linux, which mmap has no name for
# The bits of bfloat16, which numpy has no name for.
_ELEMENTS = {KVType.BF16: np.uint16, KVType.INT8: np.int8}


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePages:
    """One layer's pages: `keys` and `values` in `layout.shape`, uint16 with the bits of bfloat16, or int8.

    Scales are float32 of that shape without its last axis, INT8 only.
    """

    layout: KVLayout
    keys: NDArray[np.generic]
    values: NDArray[np.generic]
    key_scales: NDArray[np.float32] | None = None
    value_scales: NDArray[np.float32] | None = None

    def arrays(self) -> Iterator[NDArray[np.generic]]:
        """Keys, values, and the scales where there are any."""
        parts = (self.keys, self.values, self.key_scales, self.value_scales)
        return (part for part in parts if part is not None)


def allocate_pages(layout: KVLayout, num_blocks: int, num_layers: int) -> tuple[NativePages, ...]:
    """Zeroed pages of `num_blocks` blocks for every layer, keys beside values, scales where they are INT8.

    The system commits memory at the first write to it, so a large pool costs nothing until it fills. All
    layers' parts of one block lie together, so that the pool fills from its beginning: with each layer's
    blocks together every layer would have a huge page cleared for it in the same step.
    Raises KeyError for elements other than bfloat16 and int8, OSError where the system will not promise that
    much.
    """
    shape = layout.shape(num_blocks)
    elements = np.dtype(_ELEMENTS[layout.dtype])
    pages = _zeros((num_blocks, num_layers, 2, *shape[1:]), elements)
    scales = None
    if layout.is_int8:
        scales = _zeros((num_blocks, num_layers, 2, *shape[1:3]), np.dtype(np.float32))
    return tuple(
        NativePages(
            layout=layout,
            keys=pages[:, layer, 0],
            values=pages[:, layer, 1],
            key_scales=None if scales is None else scales[:, layer, 0],
            value_scales=None if scales is None else scales[:, layer, 1],
        )
        for layer in range(num_layers)
    )


class PagesAhead:
    """Has the system clear memory for blocks before a step is the first to write there.

    Clearing takes milliseconds for a huge page, longer than many steps: threads of low priority, each for a
    moment, keep some 64 MiB ahead of the blocks in use. Where the system has no such request it does nothing,
    and every block counts as there.
    """

    def __init__(self, layers: Sequence[NativePages]) -> None:
        keys = layers[0].keys
        self._start = keys.ctypes.data // _HUGE_PAGE * _HUGE_PAGE
        self._block_bytes = keys.strides[0]
        self._end = keys.ctypes.data - self._start + keys.shape[0] * self._block_bytes
        self._wanted = self._done = 0  # bytes from the start
        self._page_s = 0.0  # that a huge page takes, mean
        self._last_reach_s = 0.0
        self._layers = tuple(layers)  # keeps the memory alive while a thread runs
        self._lock = threading.Lock()
        self._is_running = False
        self._is_off = not sys.platform.startswith("linux")

    @property
    def num_blocks(self) -> int:
        """How many blocks, from the first, have memory."""
        return sys.maxsize if self._is_off else self._done // self._block_bytes

    @property
    def block_s(self) -> float:
        """Seconds that the system takes to clear the memory of a block."""
        return self._page_s * self._block_bytes / _HUGE_PAGE

    def reach(self, block: int) -> None:
        """A step uses blocks up to this one."""
        self._last_reach_s = time.monotonic()
        wanted = min(self._end, (block + 1) * self._block_bytes + _AHEAD_BYTES)
        if (
            self._is_off
            or wanted < min(self._end, self._wanted + _AHEAD_BYTES // 4)
            or wanted <= self._wanted
        ):
            return
        with self._lock:
            self._wanted = wanted
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(target=self._run, name="kv-pages", daemon=True).start()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        libc, is_there = ctypes.CDLL(None), ctypes.c_ubyte()
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        while True:
            with self._lock:
                if self._is_off or self._done >= self._wanted:
                    self._is_running = False
                    return
            num_bytes = min(_HUGE_PAGE, self._end - self._done)
            address = self._start + self._done
            libc.mincore(address, 1, ctypes.byref(is_there))  # where a step came first
            started_s = time.monotonic()
            if libc.madvise(address, num_bytes, _POPULATE_WRITE) != 0:
                self._is_off = True  # Linux before 5.14, or no memory left: steps do it themselves
            took_s = time.monotonic() - started_s
            if not is_there.value & 1:
                self._page_s += _WEIGHT * (took_s - self._page_s) if self._page_s else took_s
            self._done += _HUGE_PAGE
            time.sleep(self._pause_s(took_s))

    def _pause_s(self, took_s: float) -> float:
        is_near = self._done < self._wanted - _AHEAD_BYTES // 2
        pause_s = _SHORT_PAUSE_S if is_near else _PAUSE_S
        is_busy = time.monotonic() < self._last_reach_s + _IDLE_AFTER_S
        return max(pause_s, _BUSY_PAUSE * took_s) if is_busy else pause_s


def _zeros(shape: tuple[int, ...], elements: np.dtype[Any]) -> NDArray[Any]:
    return _map(math.prod(shape) * elements.itemsize).view(elements).reshape(shape)


def _map(num_bytes: int) -> NDArray[np.uint8]:
    """Bytes that start at a huge page's boundary. Page walks cost a third of the read speed without those."""
    private = {} if not hasattr(mmap, "MAP_PRIVATE") else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    mapping = mmap.mmap(-1, num_bytes + _HUGE_PAGE, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    if hasattr(mmap, "MADV_DONTDUMP"):
        mapping.madvise(mmap.MADV_DONTDUMP)  # what users wrote belongs in no core dump
    memory = np.frombuffer(mapping, dtype=np.uint8)  # keeps the mapping alive
    start = -memory.ctypes.data % _HUGE_PAGE
    return memory[start : start + num_bytes]
