"""The KV pages of all layers as tensors, allocated at once. Knows no queue."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from appliance.engine.batch import BlockCopy
from kernels.kv_layout import KVLayout, LayerKV


def allocate_kv(
    layout: KVLayout, *, num_layers: int, num_blocks: int, device: torch.device
) -> tuple[LayerKV, ...]:
    """Allocate the whole pool at once and return each layer's view of it.

    Pages start as zeros: a kernel may read past a sequence's end within its last page.
    """
    shape = (num_layers, *layout.shape(num_blocks))
    dtype = layout.dtype.in_torch()
    keys, values = _zeros(shape, dtype, device), _zeros(shape, dtype, device)
    scales: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    if layout.is_int8:
        scales = (_zeros(shape[:-1], torch.float32, device), _zeros(shape[:-1], torch.float32, device))
    return tuple(
        LayerKV(
            layout=layout,
            keys=keys[index],
            values=values[index],
            key_scales=None if scales[0] is None else scales[0][index],
            value_scales=None if scales[1] is None else scales[1][index],
        )
        for index in range(num_layers)
    )


@torch.inference_mode()
def copy_blocks(layers: Sequence[LayerKV], copies: Sequence[BlockCopy]) -> None:
    """Copy blocks in every layer, one after the other, since a target may be the next one's source."""
    for layer in layers:
        for pages in (layer.keys, layer.values, layer.key_scales, layer.value_scales):
            if pages is not None:
                for copy in copies:
                    pages[copy.target] = pages[copy.source]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take no time: the system promises main memory now and gives it page by page on first use."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    # numpy asks for zeroed memory; torch would write every page.
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
