"""KV pages filled with poison, and a reader that indexes them one slot at a time."""

import numpy as np
import torch

from kernels.kv_layout import KVLayout, KVOrder, LayerKV
from kernels.ops import RaggedQueries


def poisoned_layer(layout: KVLayout, num_blocks: int) -> LayerKV:
    """Pages where whatever is read before it was written shows: NaN, or INT8 with NaN for its scale."""
    shape = layout.shape(num_blocks)
    poison = 127 if layout.is_int8 else float("nan")
    keys, values = (torch.full(shape, poison, dtype=layout.dtype.in_torch()) for _ in range(2))
    if not layout.is_int8:
        return LayerKV(layout=layout, keys=keys, values=values)
    scales = [torch.full(shape[:-1], float("nan")) for _ in range(2)]
    return LayerKV(layout=layout, keys=keys, values=values, key_scales=scales[0], value_scales=scales[1])


def read_slot(
    layer: LayerKV, pages: torch.Tensor, scales: torch.Tensor | None, slot: int, head: int
) -> np.ndarray:
    """One head of one token as float64."""
    block, place = divmod(slot, layer.layout.block_size)
    index = (block, place, head) if layer.layout.order is KVOrder.BSKD else (block, head, place)
    stored = pages[index].double().numpy()
    return stored if scales is None else stored * float(scales[index])


def read_context(layer: LayerKV, slots: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of these slots, (C, K, D) float64 each."""
    heads = range(layer.layout.num_kv_heads)
    pairs = ((layer.keys, layer.key_scales), (layer.values, layer.value_scales))
    keys, values = (
        np.array([[read_slot(layer, pages, scales, slot, head) for head in heads] for slot in slots])
        for pages, scales in pairs
    )
    return keys, values


def slots_of(table: list[int], positions: range, block_size: int) -> list[int]:
    return [table[p // block_size] * block_size + p % block_size for p in positions]


def ragged_queries(num_new: list[int], context_lens: list[int], tables: list[list[int]]) -> RaggedQueries:
    starts = [0]
    for count in num_new:
        starts.append(starts[-1] + count)
    widest = max(len(table) for table in tables)
    padded = [table + [0] * (widest - len(table)) for table in tables]
    return RaggedQueries(
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        block_tables=torch.tensor(padded, dtype=torch.int32),
        host_query_starts=tuple(starts),
        host_context_lens=tuple(context_lens),
    )
