"""RoPE, KV page write and INT8 quantization on a GPU, one kernel for all three.

Contracts: Ops.rope, Ops.write_kv, Ops.rope_write_kv.
"""

import torch
import triton
import triton.language as tl

from kernels.gpu_launch import Constants, KernelCall, next_power_of_two, start
from kernels.gpu_rounding import quantization_steps
from kernels.kv_layout import LayerKV
from kernels.launch import Launch
from kernels.page_strides import PageStrides

# Up to here a program takes one token, so that a decode step fills the GPU; above, several.
_MOST_SINGLE_TOKENS = 64


@triton.jit
def rope_write_kv_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    turned_ptr,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    num_tokens,
    query_stride_token,
    query_stride_head,
    key_stride_token,
    key_stride_head,
    value_stride_token,
    value_stride_head,
    stride_page,
    stride_place,
    stride_head,
    N: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    PAGE: tl.constexpr,
    QUANTIZES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One program: BLOCK_M tokens of one head, query heads first, then key heads, then value heads.

    Where R is 0 nothing turns, and the tables are not read; where K is 0 there are no pages.
    """
    head = tl.program_id(1)
    token = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    is_token = token < num_tokens
    inside = is_token[:, None] & (d < D)[None, :]
    if head < N:
        x_at = query_ptr + token[:, None] * query_stride_token + head * query_stride_head
    elif head < N + K:
        x_at = key_ptr + token[:, None] * key_stride_token + (head - N) * key_stride_head
    else:
        x_at = value_ptr + token[:, None] * value_stride_token + (head - N - K) * value_stride_head
    x = tl.load(x_at + d[None, :], mask=inside, other=0.0).to(tl.float32)
    if R > 0:
        # An element turns with the one half a rotation away; the first half takes the sine negated.
        turns = inside & (d < tl.where(head < N + K, R, 0))[None, :]
        partner_d = tl.where(d < R // 2, d + R // 2, d - R // 2)
        partner = tl.load(x_at + partner_d[None, :], mask=turns, other=0.0).to(tl.float32)
        angle_at = token[:, None] * (R // 2) + (d % (R // 2))[None, :]
        cos = tl.load(cos_ptr + angle_at, mask=turns, other=1.0)
        sin = tl.load(sin_ptr + angle_at, mask=turns, other=0.0)
        x = x * cos + partner * tl.where(d < R // 2, -sin, sin)
    if head < N:
        turned_at = (token[:, None] * N + head) * D + d[None, :]
        tl.store(turned_ptr + turned_at, x.to(turned_ptr.dtype.element_ty), mask=inside)
    elif K > 0:
        slot = tl.load(slots_ptr + token, mask=is_token, other=-1).to(tl.int64)
        written = inside & (slot >= 0)[:, None]
        kv_head = (head - N) % K
        row = (slot // PAGE) * stride_page + (slot % PAGE) * stride_place + kv_head * stride_head
        page_at = row[:, None] * D + d[None, :]
        if QUANTIZES:
            scale = tl.max(tl.abs(x), 1) / 127.0
            steps = quantization_steps(x, scale[:, None])
            if head < N + K:
                tl.store(key_scales_ptr + row, scale, mask=slot >= 0)
                tl.store(keys_ptr + page_at, steps, mask=written)
            else:
                tl.store(value_scales_ptr + row, scale, mask=slot >= 0)
                tl.store(values_ptr + page_at, steps, mask=written)
        elif head < N + K:
            tl.store(keys_ptr + page_at, x.to(keys_ptr.dtype.element_ty), mask=written)
        else:
            tl.store(values_ptr + page_at, x.to(values_ptr.dtype.element_ty), mask=written)


# Cosines and sines of a step's tokens, (T, R / 2) float32 each.
RopeTables = tuple[torch.Tensor, torch.Tensor]


def rope(x_TND: torch.Tensor, cos_TR2: torch.Tensor, sin_TR2: torch.Tensor) -> torch.Tensor:
    turned_TND = torch.empty(x_TND.shape, dtype=x_TND.dtype, device=x_TND.device)
    _start(query=x_TND, turned=turned_TND, tables=(cos_TR2, sin_TR2))
    return turned_TND


def write_kv(key_TKD: torch.Tensor, value_TKD: torch.Tensor, slots_T: torch.Tensor, layer: LayerKV) -> None:
    _start(key=key_TKD, value=value_TKD, slots=slots_T, layer=layer)


def rope_write_kv(
    query_TND: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    cos_TR2: torch.Tensor,
    sin_TR2: torch.Tensor,
    slots_T: torch.Tensor,
    layer: LayerKV,
) -> torch.Tensor:
    turned_TND = torch.empty(query_TND.shape, dtype=query_TND.dtype, device=query_TND.device)
    _start(
        query=query_TND,
        turned=turned_TND,
        key=key_TKD,
        value=value_TKD,
        slots=slots_T,
        layer=layer,
        tables=(cos_TR2, sin_TR2),
    )
    return turned_TND


def _start(
    *,
    query: torch.Tensor | None = None,
    turned: torch.Tensor | None = None,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    layer: LayerKV | None = None,
    tables: RopeTables | None = None,
) -> None:
    """Start the kernel on what is given. What is absent has no heads, and a stand-in of the same type."""
    some = key if query is None else query
    assert some is not None
    query, key, value = (some if x is None else x for x in (query, key, value))
    assert all(x.stride(2) == 1 for x in (query, key, value))
    assert tables is None or all(table.is_contiguous() for table in tables)
    num_tokens, _, head_size = some.shape
    num_query, num_kv = (0 if turned is None else query.shape[1]), (0 if layer is None else key.shape[1])

    def constants(numbers: Launch) -> Constants:
        return {
            "N": num_query,
            "K": num_kv,
            "D": head_size,
            "R": 0 if tables is None else 2 * tables[0].shape[1],
            "PAGE": 1 if layer is None else layer.layout.block_size,
            "QUANTIZES": layer is not None and layer.layout.is_int8,
            "BLOCK_D": next_power_of_two(head_size),
            "BLOCK_M": numbers.block_m,
        }

    call = KernelCall(
        kernel=rope_write_kv_kernel,
        variant="few" if num_tokens <= _MOST_SINGLE_TOKENS else "many",
        grid=lambda numbers: (triton.cdiv(num_tokens, numbers.block_m), num_query + 2 * num_kv),
        arguments={
            "query_ptr": query,
            "key_ptr": key,
            "value_ptr": value,
            "cos_ptr": None if tables is None else tables[0],
            "sin_ptr": None if tables is None else tables[1],
            "slots_ptr": slots,
            "turned_ptr": some if turned is None else turned,
            "num_tokens": num_tokens,
            **_strides(query, key, value),
            **_page_arguments(layer, some),
        },
        constants=constants,
    )
    start(call, some.device)


def _strides(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> dict[str, object]:
    return {
        "query_stride_token": query.stride(0),
        "query_stride_head": query.stride(1),
        "key_stride_token": key.stride(0),
        "key_stride_head": key.stride(1),
        "value_stride_token": value.stride(0),
        "value_stride_head": value.stride(1),
    }


def _page_arguments(layer: LayerKV | None, stand_in: torch.Tensor) -> dict[str, object]:
    strides = PageStrides(page=0, place=0, head=0) if layer is None else PageStrides.of(layer)
    return {
        "keys_ptr": stand_in if layer is None else layer.keys,
        "values_ptr": stand_in if layer is None else layer.values,
        "key_scales_ptr": None if layer is None else layer.key_scales,
        "value_scales_ptr": None if layer is None else layer.value_scales,
        "stride_page": strides.page,
        "stride_place": strides.place,
        "stride_head": strides.head,
    }
