"""16-bit tokens times a matrix in 4-bit groups on a GPU. Contract: Ops.linear_int4."""

import torch
import triton
import triton.language as tl

from kernels.gpu_launch import Constants, KernelCall, dot_type, start
from kernels.int4_weight import PAIR_SIZE, Int4Weight
from kernels.launch import Launch
from kernels.linear.gpu_tiles import empty_product, num_tiles, store_tile, tile_of, token_variant


@triton.jit
def group_values(nibbles, scales_at, minima_at, HAS_MINIMA: tl.constexpr, DOT: tl.constexpr):
    """Return a (BLOCK_N, 32) tile: one group of each channel, computed in float32 and rounded once."""
    scale = tl.load(scales_at).to(tl.float32)
    minimum = tl.load(minima_at).to(tl.float32) if HAS_MINIMA else -8.0 * scale
    return (nibbles.to(tl.float32) * scale[:, None] + minimum[:, None]).to(DOT)


@triton.jit
def linear_int4_kernel(
    x_ptr,
    packed_ptr,
    scales_ptr,
    minima_ptr,
    bias_ptr,
    out_ptr,
    num_tokens,
    num_outputs,
    num_inputs,
    num_pairs,
    stride_x,
    HAS_MINIMA: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Each turn of the loop takes one pair of groups: 32 bytes of every channel, 64 values of x."""
    first_token, first_channel = tile_of(num_tokens, num_outputs, BLOCK_M, BLOCK_N)
    token = first_token + tl.arange(0, BLOCK_M)
    channel = first_channel + tl.arange(0, BLOCK_N)
    e = tl.arange(0, 32)
    token_row = tl.minimum(token, num_tokens - 1).to(tl.int64)
    channel_row = tl.minimum(channel, num_outputs - 1).to(tl.int64)
    x_at = x_ptr + token_row[None, :] * stride_x + e[:, None]
    packed_at = packed_ptr + channel_row[:, None] * 32 + e[None, :]
    group_at = channel_row
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for pair in range(num_pairs):
        if EVEN_K:
            x_low = tl.load(x_at)
            x_high = tl.load(x_at + 32)
        else:
            left = num_inputs - pair * 64
            x_low = tl.load(x_at, mask=(e < left)[:, None], other=0.0)
            x_high = tl.load(x_at + 32, mask=(e + 32 < left)[:, None], other=0.0)
        packed = tl.load(packed_at)
        low = group_values(packed & 15, scales_ptr + group_at, minima_ptr + group_at, HAS_MINIMA, DOT)
        acc = tl.dot(low, x_low.to(DOT), acc)
        group_at += num_outputs
        high = group_values(packed >> 4, scales_ptr + group_at, minima_ptr + group_at, HAS_MINIMA, DOT)
        acc = tl.dot(high, x_high.to(DOT), acc)
        x_at += 64
        packed_at += num_outputs * 32
        group_at += num_outputs
    store_tile(acc, out_ptr, bias_ptr, token, channel, num_tokens, num_outputs, HAS_BIAS)


def linear_int4(x_TI: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    num_pairs, num_outputs, _ = weight.packed.shape
    assert weight.packed.is_contiguous()
    assert weight.scales.is_contiguous()
    assert weight.minima is None or weight.minima.is_contiguous()
    out_TO = empty_product(x_TI, num_outputs, weight.activation_dtype)

    def constants(numbers: Launch) -> Constants:
        return {
            "HAS_MINIMA": weight.minima is not None,
            "HAS_BIAS": weight.bias is not None,
            "EVEN_K": weight.num_inputs % PAIR_SIZE == 0,
            "DOT": dot_type(weight.activation_dtype),
            "BLOCK_M": numbers.block_m,
            "BLOCK_N": numbers.block_n,
        }

    call = KernelCall(
        kernel=linear_int4_kernel,
        variant=token_variant(len(x_TI)),
        grid=lambda numbers: num_tiles(len(x_TI), num_outputs, numbers.block_m, numbers.block_n),
        arguments={
            "x_ptr": x_TI,
            "packed_ptr": weight.packed,
            "scales_ptr": weight.scales,
            # Without minima nothing is read there.
            "minima_ptr": weight.scales if weight.minima is None else weight.minima,
            "bias_ptr": weight.bias,
            "out_ptr": out_TO,
            "num_tokens": len(x_TI),
            "num_outputs": num_outputs,
            "num_inputs": weight.num_inputs,
            "num_pairs": num_pairs,
            "stride_x": x_TI.stride(0),
        },
        constants=constants,
    )
    start(call, x_TI.device)
    return out_TO
