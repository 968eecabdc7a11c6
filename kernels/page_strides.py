"""Steps between pages, places and heads of a layer's KV. Knows both orders in memory."""

from dataclasses import dataclass
from typing import Self

from kernels.kv_layout import KVOrder, LayerKV


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStrides:
    """Steps counted in heads of D elements: the same for pages and, without the D, for their scales."""

    page: int
    place: int
    head: int

    @classmethod
    def of(cls, layer: LayerKV) -> Self:
        layout = layer.layout
        assert layer.keys.is_contiguous()
        assert layer.values.is_contiguous()
        page = layout.block_size * layout.num_kv_heads
        if layout.order is KVOrder.BSKD:
            return cls(page=page, place=layout.num_kv_heads, head=1)
        return cls(page=page, place=1, head=layout.block_size)
