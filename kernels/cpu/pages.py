"""Memory for KV pages as the native engine likes it: one mapping of huge pages, committed as it is used."""

import mmap

import torch

from kernels.kv_layout import KVLayout, LayerKV

_HUGE_PAGE = 2 << 20


def allocate_pages(layout: KVLayout, num_blocks: int, num_layers: int) -> list[LayerKV]:
    """Zeroed pages of `num_blocks` blocks for every layer, keys beside values, scales where they are INT8.

    The system commits memory at the first write to it, so a large pool costs nothing until it fills.
    Raises OSError where the system will not promise that much.
    """
    shape = layout.shape(num_blocks)
    page_bytes = layout.dtype.itemsize * shape[0] * shape[1] * shape[2] * shape[3]
    memory = _map(2 * num_layers * _rounded(page_bytes))
    pages = [
        _view(memory, i * _rounded(page_bytes), page_bytes, layout, shape) for i in range(2 * num_layers)
    ]
    return [
        LayerKV(
            layout=layout,
            keys=keys,
            values=values,
            key_scales=torch.zeros(shape[:3]) if layout.is_int8 else None,
            value_scales=torch.zeros(shape[:3]) if layout.is_int8 else None,
        )
        for keys, values in zip(pages[::2], pages[1::2], strict=True)
    ]


def _rounded(num_bytes: int) -> int:
    return (num_bytes + 63) // 64 * 64


def _map(num_bytes: int) -> torch.Tensor:
    """Bytes that start at a huge page's boundary. Page walks cost a third of the read speed without those."""
    private = {} if not hasattr(mmap, "MAP_PRIVATE") else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    mapping = mmap.mmap(-1, num_bytes + _HUGE_PAGE, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)  # keeps the mapping alive
    start = -memory.data_ptr() % _HUGE_PAGE
    return memory[start : start + num_bytes]


def _view(
    memory: torch.Tensor, start: int, num_bytes: int, layout: KVLayout, shape: tuple[int, ...]
) -> torch.Tensor:
    return memory[start : start + num_bytes].view(layout.dtype).view(shape)
