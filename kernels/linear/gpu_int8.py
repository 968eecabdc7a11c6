"""16-bit tokens times an INT8 matrix on a GPU, converted tile by tile. Contract: Ops.linear_int8."""

import torch
import triton
import triton.language as tl

from kernels.gpu_launch import Constants, KernelCall, dot_type, start
from kernels.int8_weight import Int8Weight
from kernels.launch import Launch
from kernels.linear.gpu_tiles import empty_product, num_tiles, store_tile, tile_of, token_variant


@triton.jit
def linear_int8_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    num_tokens,
    num_outputs,
    num_inputs,
    stride_x,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    first_token, first_channel = tile_of(num_tokens, num_outputs, BLOCK_M, BLOCK_N)
    token = first_token + tl.arange(0, BLOCK_M)
    channel = first_channel + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # Rows past the end read the last one again: a load without a mask, and its result is not stored.
    token_row = tl.minimum(token, num_tokens - 1).to(tl.int64)
    channel_row = tl.minimum(channel, num_outputs - 1).to(tl.int64)
    x_at = x_ptr + token_row[None, :] * stride_x + k[:, None]
    weight_at = weight_ptr + channel_row[:, None] * num_inputs + k[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for first_k in range(0, num_inputs, BLOCK_K):
        if EVEN_K:
            weight = tl.load(weight_at)
            x = tl.load(x_at)
        else:
            left = num_inputs - first_k
            weight = tl.load(weight_at, mask=(k < left)[None, :], other=0)
            x = tl.load(x_at, mask=(k < left)[:, None], other=0.0)
        acc = tl.dot(weight.to(DOT), x.to(DOT), acc)
        weight_at += BLOCK_K
        x_at += BLOCK_K
    acc *= tl.load(scales_ptr + channel_row)[:, None]
    store_tile(acc, out_ptr, bias_ptr, token, channel, num_tokens, num_outputs, HAS_BIAS)


def linear_int8(x_TI: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    num_outputs, num_inputs = weight.weight.shape
    assert weight.weight.is_contiguous()
    out_TO = empty_product(x_TI, num_outputs, weight.activation_dtype)

    def constants(numbers: Launch) -> Constants:
        return {
            "HAS_BIAS": weight.bias is not None,
            "EVEN_K": num_inputs % numbers.block_k == 0,
            "DOT": dot_type(weight.activation_dtype),
            "BLOCK_M": numbers.block_m,
            "BLOCK_N": numbers.block_n,
            "BLOCK_K": numbers.block_k,
        }

    call = KernelCall(
        kernel=linear_int8_kernel,
        variant=token_variant(len(x_TI)),
        grid=lambda numbers: num_tiles(len(x_TI), num_outputs, numbers.block_m, numbers.block_n),
        arguments={
            "x_ptr": x_TI,
            "weight_ptr": weight.weight,
            "scales_ptr": weight.scales,
            "bias_ptr": weight.bias,
            "out_ptr": out_TO,
            "num_tokens": len(x_TI),
            "num_outputs": num_outputs,
            "num_inputs": num_inputs,
            "stride_x": x_TI.stride(0),
        },
        constants=constants,
    )
    start(call, x_TI.device)
    return out_TO
