"""Memory for KV pages as the native engine likes it: one mapping of huge pages, committed as it is used."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.kv_layout import KVLayout, KVType

_HUGE_PAGE = 2 << 20
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

    The system commits memory at the first write to it, so a large pool costs nothing until it fills.
    Raises KeyError for elements other than bfloat16 and int8, OSError where the system will not promise that
    much.
    """
    shape = layout.shape(num_blocks)
    page_bytes = layout.dtype.itemsize * shape[0] * shape[1] * shape[2] * shape[3]
    scale_bytes = 4 * shape[0] * shape[1] * shape[2] if layout.is_int8 else 0
    taker = _Taker(2 * num_layers * (_rounded(page_bytes) + _rounded(scale_bytes)))
    elements = np.dtype(_ELEMENTS[layout.dtype])

    def scales() -> NDArray[np.float32] | None:
        return taker.take(scale_bytes).view(np.float32).reshape(shape[:3]) if scale_bytes else None

    return tuple(
        NativePages(
            layout=layout,
            keys=taker.take(page_bytes).view(elements).reshape(shape),
            values=taker.take(page_bytes).view(elements).reshape(shape),
            key_scales=scales(),
            value_scales=scales(),
        )
        for _ in range(num_layers)
    )


def _rounded(num_bytes: int) -> int:
    return (num_bytes + 63) // 64 * 64


class _Taker:
    """Hands out a mapping piece by piece, each at a cache line's boundary."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = _map(num_bytes)
        self._taken = 0

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        start = self._taken
        self._taken += _rounded(num_bytes)
        return self._memory[start : start + num_bytes]


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
