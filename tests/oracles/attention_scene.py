"""Sequences of random keys and values in shuffled, fenced, poisoned pages, with queries to attend with."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from kernels.kv.reference import write_kv
from kernels.kv_layout import KVLayout, LayerKV
from kernels.ops import RaggedQueries
from oracles.fences import Fences
from oracles.pages import poisoned_layer, ragged_queries, slots_of


@dataclass(frozen=True, kw_only=True)
class AttentionScene:
    layer: LayerKV
    query: torch.Tensor  # (T, N, D)
    ragged: RaggedQueries
    fences: Fences = field(default_factory=Fences)


def attention_scene(
    layout: KVLayout,
    shares: tuple[tuple[int, int], ...],
    *,
    group: int,
    dtype: torch.dtype,
    spare_blocks: int = 0,
    seed: int = 0,
) -> AttentionScene:
    """Build it. `shares` holds (new tokens, context length) per sequence; `spare_blocks` widen the tables.

    Block 0 belongs to nobody: tables are padded with it, and it stays poisoned.
    """
    rng, fences = np.random.default_rng(seed), Fences()
    needed = [-(-context // layout.block_size) for _, context in shares]
    ids = (1 + rng.permutation(sum(needed))).tolist()
    tables = [[ids.pop() for _ in range(count)] for count in needed]
    layer = poisoned_layer(layout, sum(needed) + 1)
    for table, (_, context) in zip(tables, shares, strict=True):
        shape = (context, layout.num_kv_heads, layout.head_size)
        key, value = (torch.from_numpy(rng.standard_normal(shape)).to(dtype) for _ in range(2))
        write_kv(
            key,
            value,
            torch.tensor(slots_of(table, range(context), layout.block_size), dtype=torch.int64),
            layer,
        )
    query_shape = (sum(new for new, _ in shares), group * layout.num_kv_heads, layout.head_size)
    padded = [table + [0] * spare_blocks for table in tables]
    return AttentionScene(
        layer=fenced_layer(layer, fences),
        query=fences.around(torch.from_numpy(rng.standard_normal(query_shape)).to(dtype)),
        ragged=ragged_queries([new for new, _ in shares], [context for _, context in shares], padded),
        fences=fences,
    )


def fenced_layer(layer: LayerKV, fences: Fences) -> LayerKV:
    scales = (layer.key_scales, layer.value_scales)
    key_scales, value_scales = (None if x is None else fences.around(x) for x in scales)
    keys, values = fences.around(layer.keys), fences.around(layer.values)
    return replace(layer, keys=keys, values=values, key_scales=key_scales, value_scales=value_scales)
