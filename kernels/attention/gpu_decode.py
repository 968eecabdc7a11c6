"""Attention of one new token per sequence over paged KV, split along the context, on a GPU.

Contract: Ops.attention. Splits and their merge after Dao et al., Flash-Decoding (2023). The query heads of a
group fill a tile of 16 rows, so that scores are a tensor core's work: summing products instead spills.
"""

import torch
import triton
import triton.language as tl

from kernels.attention.gpu_arguments import attention_arguments, attention_constants, attention_variant
from kernels.attention.gpu_prefill import load_heads, log2_scores
from kernels.gpu_launch import Constants, KernelCall, next_power_of_two, start
from kernels.kv_layout import LayerKV
from kernels.launch import Launch, num_processors_of
from kernels.ops import AttentionParams, RaggedQueries

MOST_SPLITS = 64
# A tensor core's smallest tile has this many rows.
_LEAST_ROWS = 16


@triton.jit
def attention_decode_kernel(
    query_ptr,
    keys_ptr,
    values_ptr,
    key_scales_ptr,
    value_scales_ptr,
    tables_ptr,
    starts_ptr,
    lens_ptr,
    out_ptr,
    partial_ptr,
    logsum_ptr,
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
    SPLIT: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program: one KV head of one sequence, over one split of its context."""
    split, kv_head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = tl.load(starts_ptr + sequence).to(tl.int64)
    if tl.load(starts_ptr + sequence + 1) != token + 1:
        return
    context_len = tl.load(lens_ptr + sequence)
    g, d = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    head = kv_head * G + g
    is_row = (g < G)[:, None] & (d < D)[None, :]
    query_at = token * query_stride_token + head * query_stride_head
    q = tl.load(query_ptr + query_at[:, None] + d[None, :], mask=is_row, other=0.0).to(DOT)

    first_seen = 0
    if WINDOWED:
        first_seen = tl.maximum(context_len - window, 0)
    begin = first_seen // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(context_len - begin, tl.num_programs(0)), BLOCK_N) * BLOCK_N
    low = begin + split * share
    high = tl.minimum(low + share, context_len)

    top = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for first_key in range(low, high, BLOCK_N):
        key_position = first_key + tl.arange(0, BLOCK_N)
        is_key = (key_position < high) & (key_position >= first_seen)
        page = tl.load(tables_ptr + sequence * stride_table + key_position // PAGE, mask=is_key, other=0)
        kv_row = (
            page.to(tl.int64) * stride_page + (key_position % PAGE) * stride_place + kv_head * stride_head
        )
        k = load_heads(keys_ptr, kv_row, d, is_key, D, BLOCK_D, True).to(DOT)
        v = load_heads(values_ptr, kv_row, d, is_key, D, BLOCK_D, True).to(DOT)
        if QUANTIZED:
            k_scale = tl.load(key_scales_ptr + kv_row, mask=is_key, other=0.0)
            v_scale = tl.load(value_scales_ptr + kv_row, mask=is_key, other=0.0)
            scores = log2_scores(q, k, scale * k_scale[None, :], softcap, CAPPED)
        else:
            scores = log2_scores(q, k, scale, softcap, CAPPED)
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        # A tile has at least one key that is seen: the first starts in the window's own tile.
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        faded = tl.exp2(top - new_top)
        total = total * faded + tl.sum(weights, 1)
        if QUANTIZED:
            weights = weights * v_scale[None, :]
        acc = tl.dot(weights.to(DOT), v, acc * faded[:, None])
        top = new_top
    divisor = tl.where(total > 0, total, 1.0)
    out = acc / divisor[:, None]
    if SPLIT:
        splits = tl.num_programs(0)
        partial_row = (sequence.to(tl.int64) * N + head) * splits + split
        tl.store(partial_ptr + partial_row[:, None] * D + d[None, :], out, mask=is_row)
        logsum = tl.where(total > 0, top + tl.log2(divisor), float("-inf"))
        tl.store(logsum_ptr + partial_row, logsum, mask=g < G)
    else:
        out_at = (token * N + head)[:, None] * D + d[None, :]
        tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=is_row)


@triton.jit
def attention_reduce_kernel(
    partial_ptr,
    logsum_ptr,
    starts_ptr,
    out_ptr,
    num_splits,
    N: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """One program: one head of one sequence. Splits weigh as their shares of the sum of exponentials."""
    head, sequence = tl.program_id(0), tl.program_id(1)
    token = tl.load(starts_ptr + sequence).to(tl.int64)
    if tl.load(starts_ptr + sequence + 1) != token + 1:
        return
    d, s = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
    row = (sequence.to(tl.int64) * N + head) * num_splits + s
    logsum = tl.load(logsum_ptr + row, mask=s < num_splits, other=float("-inf"))
    top = tl.max(logsum, 0)
    share = tl.exp2(logsum - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(share, 0)
    inside = (s < num_splits)[:, None] & (d < D)[None, :]
    partial = tl.load(partial_ptr + row[:, None] * D + d[None, :], mask=inside, other=0.0)
    out = tl.sum(partial * share[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + (token * N + head) * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)


def choose_splits(num_sequences: int, num_kv_heads: int, most_context: int, num_processors: int) -> int:
    """Return into how many splits each context goes: enough for two programs per processor, no more than
    there are tiles of 64 keys. Reads shapes only, so a captured graph stays right as contexts grow."""
    wanted = 2 * num_processors // (num_sequences * num_kv_heads)
    useful = -(-most_context // 64)
    return 1 << (max(1, min(wanted, useful, MOST_SPLITS)).bit_length() - 1)


def start_decode(
    query_TND: torch.Tensor,
    layer: LayerKV,
    ragged: RaggedQueries,
    params: AttentionParams,
    out_TND: torch.Tensor,
    *,
    num_splits: int | None = None,
) -> None:
    """Fill the rows of `out_TND` of sequences with one new token."""
    num_sequences, num_kv_heads = ragged.num_sequences, layer.layout.num_kv_heads
    num_heads, head_size = query_TND.shape[1:]
    most_context = ragged.block_tables.shape[1] * layer.layout.block_size
    device = out_TND.device
    splits = num_splits or choose_splits(num_sequences, num_kv_heads, most_context, num_processors_of(device))
    partial_SNPD, logsum_SNP = None, None
    if splits > 1:
        rows = (num_sequences, num_heads, splits)
        partial_SNPD = torch.empty(*rows, head_size, dtype=torch.float32, device=device)
        logsum_SNP = torch.empty(rows, dtype=torch.float32, device=device)
    group = num_heads // num_kv_heads

    def constants(numbers: Launch) -> Constants:
        return {
            **attention_constants(query_TND, layer, params),
            "SPLIT": splits > 1,
            "BLOCK_G": max(_LEAST_ROWS, next_power_of_two(group)),
            "BLOCK_N": numbers.block_n,
        }

    call = KernelCall(
        kernel=attention_decode_kernel,
        variant=attention_variant(layer.layout),
        grid=lambda _: (splits, num_kv_heads, num_sequences),
        arguments={
            **attention_arguments(query_TND, layer, ragged, params),
            "out_ptr": out_TND,
            "partial_ptr": partial_SNPD,
            "logsum_ptr": logsum_SNP,
        },
        constants=constants,
    )
    start(call, device)
    if partial_SNPD is not None and logsum_SNP is not None:
        _start_reduce(partial_SNPD, logsum_SNP, ragged, out_TND)


def _start_reduce(
    partial_SNPD: torch.Tensor,
    logsum_SNP: torch.Tensor,
    ragged: RaggedQueries,
    out_TND: torch.Tensor,
) -> None:
    num_sequences, num_heads, splits, head_size = partial_SNPD.shape
    call = KernelCall(
        kernel=attention_reduce_kernel,
        variant="any",
        grid=lambda _: (num_heads, num_sequences),
        arguments={
            "partial_ptr": partial_SNPD,
            "logsum_ptr": logsum_SNP,
            "starts_ptr": ragged.query_starts,
            "out_ptr": out_TND,
            "num_splits": splits,
        },
        constants=lambda _: {
            "N": num_heads,
            "D": head_size,
            "BLOCK_D": next_power_of_two(head_size),
            "BLOCK_S": next_power_of_two(splits),
        },
    )
    start(call, out_TND.device)
