"""What both attention kernels are called with. Knows layouts and strides; starts nothing."""

import torch

from kernels.gpu_launch import Constants, dot_type, next_power_of_two
from kernels.kv_layout import KVLayout, LayerKV
from kernels.ops import AttentionParams, RaggedQueries
from kernels.page_strides import PageStrides


def attention_arguments(
    query_TND: torch.Tensor, layer: LayerKV, ragged: RaggedQueries, params: AttentionParams
) -> dict[str, object]:
    assert query_TND.stride(2) == 1
    assert ragged.block_tables.stride(1) == 1 or ragged.block_tables.shape[1] == 1
    strides = PageStrides.of(layer)
    return {
        "query_ptr": query_TND,
        "keys_ptr": layer.keys,
        "values_ptr": layer.values,
        "key_scales_ptr": layer.key_scales,
        "value_scales_ptr": layer.value_scales,
        "tables_ptr": ragged.block_tables,
        "starts_ptr": ragged.query_starts,
        "lens_ptr": ragged.context_lens,
        "scale": params.scale,
        "softcap": params.softcap or 0.0,
        "window": params.window or 0,
        "query_stride_token": query_TND.stride(0),
        "query_stride_head": query_TND.stride(1),
        "stride_table": ragged.block_tables.stride(0),
        "stride_page": strides.page,
        "stride_place": strides.place,
        "stride_head": strides.head,
    }


def attention_constants(query_TND: torch.Tensor, layer: LayerKV, params: AttentionParams) -> Constants:
    num_heads, head_size = query_TND.shape[1:]
    return {
        "N": num_heads,
        "G": num_heads // layer.layout.num_kv_heads,
        "D": head_size,
        "PAGE": layer.layout.block_size,
        "QUANTIZED": layer.layout.is_int8,
        "WINDOWED": params.window is not None,
        "CAPPED": params.softcap is not None,
        "DOT": dot_type(query_TND.dtype),
        "BLOCK_D": max(16, next_power_of_two(head_size)),
    }


def attention_variant(layout: KVLayout) -> str:
    """Name the numbers: by the head size that a tile is padded to, and by the width of a stored element."""
    padded = min((size for size in (64, 128, 256) if size >= layout.head_size), default=256)
    return f"{padded}-int8" if layout.is_int8 else str(padded)
