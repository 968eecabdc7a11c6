"""How a KV cache lies in memory. Declared by a backend for a model; references accept any."""

from dataclasses import dataclass
from enum import StrEnum

import torch


class KVOrder(StrEnum):
    """Order of one layer's axes: B blocks, S slots in a block, K heads, D head size."""

    BSKD = "bskd"  # a slot's heads together: one write per token
    BKSD = "bksd"  # a head's slots together: one sequential read per head


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Block size in tokens, element type, order. INT8 adds one float32 scale per token and head."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    order: KVOrder = KVOrder.BSKD

    @property
    def is_int8(self) -> bool:
        return self.dtype == torch.int8

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer: keys, values and their scales."""
        scales = 4 if self.is_int8 else 0
        return 2 * self.num_kv_heads * (self.head_size * self.dtype.itemsize + scales)

    def shape(self, num_blocks: int) -> tuple[int, int, int, int]:
        if self.order is KVOrder.BSKD:
            return num_blocks, self.block_size, self.num_kv_heads, self.head_size
        return num_blocks, self.num_kv_heads, self.block_size, self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKV:
    """One layer's pages: `keys` and `values` in `layout.shape`; scales the same without D, INT8 only."""

    layout: KVLayout
    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
