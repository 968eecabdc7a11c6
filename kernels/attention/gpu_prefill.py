"""Flash attention of many new tokens per sequence over paged KV, on a GPU. Contract: Ops.attention.

Tiled online softmax after Dao et al., FlashAttention-2 (2023). A KV head's query heads share its tiles: a row
of a tile is one query of one head, tokens outermost.
"""

from itertools import pairwise

import torch
import triton
import triton.language as tl

from kernels.attention.gpu_arguments import attention_arguments, attention_constants, attention_variant
from kernels.gpu_launch import Constants, KernelCall, start
from kernels.kv_layout import LayerKV
from kernels.launch import Launch
from kernels.ops import AttentionParams, RaggedQueries

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_heads(pages_ptr, row, d, is_row, D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """Load a (rows, BLOCK_D) tile of heads; what is masked or beyond D is 0."""
    at = pages_ptr + row[:, None] * D + d[None, :]
    if MASKED:
        return tl.load(at, mask=is_row[:, None] & (d < D)[None, :], other=0)
    if D != BLOCK_D:
        return tl.load(at, mask=(d < D)[None, :], other=0)
    return tl.load(at)


@triton.jit
def log2_scores(q, k, scale, softcap, CAPPED: tl.constexpr):
    """Return scores times log2(e), so that exp2 is all a softmax needs."""
    scores = tl.dot(q, tl.trans(k)) * scale
    if CAPPED:
        # tanh(x) is 1 - 2 / (exp(2 x) + 1), right at both ends.
        scores = softcap * (1.0 - 2.0 / (tl.exp(scores * (2.0 / softcap)) + 1.0))
    return scores * LOG2_E


@triton.jit
def attention_prefill_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    tables_ptr,
    starts_ptr,
    lens_ptr,
    out_ptr,
    scale,
    softcap,
    window,
    query_stride_token,
    query_stride_head,
    stride_table,
    stride_page,
    stride_place,
    stride_head,
    N: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    QUANTIZED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_M rows of one KV head of one sequence. Later rows have more to do, so come first."""
    sequence, kv_head = tl.program_id(2), tl.program_id(1)
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    start = tl.load(starts_ptr + sequence)
    num_new = tl.load(starts_ptr + sequence + 1) - start
    if (num_new == 1) | (first_row >= num_new * G):
        return
    context_len = tl.load(lens_ptr + sequence)
    row = first_row + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    is_row = (row < num_new * G)[:, None] & (d < D)[None, :]
    token = start.to(tl.int64) + row // G
    head = kv_head * G + row % G
    query_at = token * query_stride_token + head * query_stride_head
    q = tl.load(query_ptr + query_at[:, None] + d[None, :], mask=is_row, other=0.0).to(DOT)

    before = context_len - num_new
    position = before + row // G
    first_position = before + first_row // G
    end = before + tl.minimum((first_row + BLOCK_M - 1) // G + 1, num_new)
    if WINDOWED:
        begin = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
        whole_end = begin
    else:
        begin = 0
        # Up to here every row sees every key, so nothing is masked.
        whole_end = (first_position + 1) // BLOCK_N * BLOCK_N

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for MASKED in tl.static_range(2):
        if MASKED:
            low, high = whole_end, end
        else:
            low, high = begin, whole_end
        for first_key in range(low, high, BLOCK_N):
            key_position = first_key + tl.arange(0, BLOCK_N)
            is_key = key_position < end
            if MASKED:
                page = tl.load(
                    tables_ptr + sequence * stride_table + key_position // PAGE, mask=is_key, other=0
                )
            else:
                page = tl.load(tables_ptr + sequence * stride_table + key_position // PAGE)
            kv_row = (
                page.to(tl.int64) * stride_page + (key_position % PAGE) * stride_place + kv_head * stride_head
            )
            k = load_heads(keys_ptr, kv_row, d, is_key, D, BLOCK_D, MASKED).to(DOT)
            v = load_heads(values_ptr, kv_row, d, is_key, D, BLOCK_D, MASKED).to(DOT)
            if QUANTIZED:
                k_scale = tl.load(key_scales_ptr + kv_row, mask=is_key, other=0.0)
                v_scale = tl.load(value_scales_ptr + kv_row, mask=is_key, other=0.0)
                scores = log2_scores(q, k, scale * k_scale[None, :], softcap, CAPPED)
            else:
                scores = log2_scores(q, k, scale, softcap, CAPPED)
            if MASKED:
                seen = (key_position[None, :] <= position[:, None]) & is_key[None, :]
                if WINDOWED:
                    seen &= key_position[None, :] > position[:, None] - window
                scores = tl.where(seen, scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            # A row whose keys are all hidden so far has no top; 0 keeps its weights at 0, not NaN.
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            weights = tl.exp2(scores - base[:, None])
            faded = tl.exp2(top - base)
            total = total * faded + tl.sum(weights, 1)
            if QUANTIZED:
                weights = weights * v_scale[None, :]
            acc = tl.dot(weights.to(DOT), v, acc * faded[:, None])
            top = new_top
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    out_at = (token * N + head)[:, None] * D + d[None, :]
    tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=is_row)


def start_prefill(
    query_TND: torch.Tensor,
    layer: LayerKV,
    ragged: RaggedQueries,
    params: AttentionParams,
    out_TND: torch.Tensor,
) -> None:
    """Fill the rows of `out_TND` that belong to sequences of more than one new token."""
    starts = ragged.host_query_starts
    most_new = max(end - first for first, end in pairwise(starts))
    num_kv_heads = layer.layout.num_kv_heads
    group = query_TND.shape[1] // num_kv_heads

    def constants(numbers: Launch) -> Constants:
        return {
            **attention_constants(query_TND, layer, params),
            "BLOCK_M": numbers.block_m,
            "BLOCK_N": numbers.block_n,
        }

    def grid(numbers: Launch) -> tuple[int, ...]:
        return triton.cdiv(most_new * group, numbers.block_m), num_kv_heads, ragged.num_sequences

    call = KernelCall(
        kernel=attention_prefill_kernel,
        variant=attention_variant(layer.layout),
        grid=grid,
        arguments={**attention_arguments(query_TND, layer, ragged, params), "out_ptr": out_TND},
        constants=constants,
    )
    start(call, out_TND.device)
