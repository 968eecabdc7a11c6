"""KV pages in plain torch: write tokens, read a sequence back. Contracts: Ops.write_kv, copy_blocks."""

import torch

from kernels.int8_weight import quantize_rows
from kernels.kv_layout import KVOrder, LayerKV


def write_kv(key_TKD: torch.Tensor, value_TKD: torch.Tensor, slots_T: torch.Tensor, layer: LayerKV) -> None:
    written = slots_T >= 0
    key_TKD, value_TKD, slots_T = key_TKD[written], value_TKD[written], slots_T[written]
    blocks_T, places_T = slots_T // layer.layout.block_size, slots_T % layer.layout.block_size
    for x_TKD, pages, scales in (
        (key_TKD, layer.keys, layer.key_scales),
        (value_TKD, layer.values, layer.value_scales),
    ):
        if scales is None:
            _by_slot(pages, layer)[blocks_T, places_T] = x_TKD.to(pages.dtype)
        else:
            quantized_TKD, scales_TK = quantize_heads(x_TKD)
            _by_slot(pages, layer)[blocks_T, places_T] = quantized_TKD
            _by_slot(scales, layer)[blocks_T, places_T] = scales_TK


def read_kv(
    layer: LayerKV, block_ids_B: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of these pages as (B * block_size, K, D) each, dequantized to `dtype`."""
    return (
        _read(layer.keys, layer.key_scales, block_ids_B, layer, dtype),
        _read(layer.values, layer.value_scales, block_ids_B, layer, dtype),
    )


def copy_blocks(sources_C: torch.Tensor, targets_C: torch.Tensor, layer: LayerKV) -> None:
    for pages in (layer.keys, layer.values, layer.key_scales, layer.value_scales):
        if pages is not None:
            pages[targets_C] = pages[sources_C]


def quantize_heads(x_TKD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric absmax INT8 per token and head: (int8 like x, float32 scales (T, K))."""
    return quantize_rows(x_TKD)


def _read(
    pages: torch.Tensor,
    scales: torch.Tensor | None,
    block_ids_B: torch.Tensor,
    layer: LayerKV,
    dtype: torch.dtype,
) -> torch.Tensor:
    picked = _by_slot(pages[block_ids_B], layer).flatten(0, 1)
    if scales is None:
        return picked.to(dtype)
    return (picked.float() * _by_slot(scales[block_ids_B], layer).flatten(0, 1)[..., None]).to(dtype)


def _by_slot(pages: torch.Tensor, layer: LayerKV) -> torch.Tensor:
    """View pages with slots before heads, whatever their order in memory."""
    return pages if layer.layout.order is KVOrder.BSKD else pages.transpose(1, 2)
