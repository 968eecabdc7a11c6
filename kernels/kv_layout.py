"""How a KV cache lies in memory. Declared by a backend for a model; references accept any."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class KVOrder(StrEnum):
    """Order of one layer's axes: B blocks, S slots in a block, K heads, D head size."""

    BSKD = "bskd"  # a slot's heads together: one write per token
    BKSD = "bksd"  # a head's slots together: one sequential read per head


class KVType(StrEnum):
    """A page's elements. Apart from torch's types: the native engine serves without torch."""

    F32 = "float32"
    F16 = "float16"
    BF16 = "bfloat16"
    INT8 = "int8"

    @classmethod
    def of(cls, dtype: "torch.dtype") -> "KVType":
        """Return torch's type by its name here. Raises ValueError for one that no page has."""
        return cls(str(dtype).removeprefix("torch."))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return {KVType.F32: 4, KVType.F16: 2, KVType.BF16: 2, KVType.INT8: 1}[self]

    def in_torch(self) -> "torch.dtype":
        """Return the type as torch has it."""
        import torch

        return {
            KVType.F32: torch.float32,
            KVType.F16: torch.float16,
            KVType.BF16: torch.bfloat16,
            KVType.INT8: torch.int8,
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Block size in tokens, element type, order. INT8 adds one float32 scale per token and head."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: KVType
    order: KVOrder = KVOrder.BSKD

    @property
    def is_int8(self) -> bool:
        return self.dtype is KVType.INT8

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
    keys: "torch.Tensor"
    values: "torch.Tensor"
    key_scales: "torch.Tensor | None" = None
    value_scales: "torch.Tensor | None" = None
