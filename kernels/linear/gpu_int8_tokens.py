"""INT8 tokens times an INT8 matrix on a GPU, and how tokens become INT8.

Contracts: Ops.quantize_tokens, Ops.linear_int8_tokens.
"""

import torch
import triton
import triton.language as tl

from kernels.gpu_launch import Constants, KernelCall, start
from kernels.gpu_rounding import quantization_steps
from kernels.int8_weight import Int8Weight
from kernels.launch import Launch
from kernels.linear.gpu_tiles import empty_product, num_tiles, store_tile, tile_of


@triton.jit
def quantize_tokens_kernel(x_ptr, steps_ptr, scales_ptr, size, stride_row, BLOCK_N: tl.constexpr):
    """One program: one token, read twice; the second time it is still in the cache."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_N)
    largest = tl.zeros([BLOCK_N], tl.float32)
    for first in range(0, size, BLOCK_N):
        x = tl.load(x_ptr + token * stride_row + first + column, mask=first + column < size, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    scale = tl.max(largest, 0) / 127.0
    tl.store(scales_ptr + token, scale)
    for first in range(0, size, BLOCK_N):
        inside = first + column < size
        x = tl.load(x_ptr + token * stride_row + first + column, mask=inside, other=0.0).to(tl.float32)
        steps = quantization_steps(x, scale)
        tl.store(steps_ptr + token * size + first + column, steps, mask=inside)


@triton.jit
def quantize_at_once_kernel(x_ptr, steps_ptr, scales_ptr, size, stride_row, BLOCK_N: tl.constexpr):
    """One program: one token, read once, since its scale is there already."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_N)
    scale = tl.load(scales_ptr + token)
    for first in range(0, size, BLOCK_N):
        inside = first + column < size
        x = tl.load(x_ptr + token * stride_row + first + column, mask=inside, other=0.0).to(tl.float32)
        most = 127.0 * scale
        x = tl.minimum(tl.maximum(x, -most), most)
        tl.store(steps_ptr + token * size + first + column, quantization_steps(x, scale), mask=inside)


@triton.jit
def linear_int8_tokens_kernel(
    x_ptr,
    token_scales_ptr,
    weight_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    num_tokens,
    num_outputs,
    num_inputs,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    first_token, first_channel = tile_of(num_tokens, num_outputs, BLOCK_M, BLOCK_N)
    token = first_token + tl.arange(0, BLOCK_M)
    channel = first_channel + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    token_row = tl.minimum(token, num_tokens - 1).to(tl.int64)
    channel_row = tl.minimum(channel, num_outputs - 1).to(tl.int64)
    x_at = x_ptr + token_row[None, :] * num_inputs + k[:, None]
    weight_at = weight_ptr + channel_row[:, None] * num_inputs + k[None, :]
    sums = tl.zeros([BLOCK_N, BLOCK_M], tl.int32)
    for first_k in range(0, num_inputs, BLOCK_K):
        if EVEN_K:
            weight = tl.load(weight_at)
            x = tl.load(x_at)
        else:
            left = num_inputs - first_k
            weight = tl.load(weight_at, mask=(k < left)[None, :], other=0)
            x = tl.load(x_at, mask=(k < left)[:, None], other=0)
        sums = tl.dot(weight, x, sums, out_dtype=tl.int32)
        weight_at += BLOCK_K
        x_at += BLOCK_K
    acc = sums.to(tl.float32) * tl.load(token_scales_ptr + token_row)[None, :]
    acc *= tl.load(scales_ptr + channel_row)[:, None]
    store_tile(acc, out_ptr, bias_ptr, token, channel, num_tokens, num_outputs, HAS_BIAS)


def quantize_tokens(x_TI: torch.Tensor, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    assert x_TI.stride(1) == 1
    num_tokens, size = x_TI.shape
    steps_TI = torch.empty(num_tokens, size, dtype=torch.int8, device=x_TI.device)
    scales_T = torch.empty(num_tokens, dtype=torch.float32, device=x_TI.device)
    if scale is not None:
        scales_T.fill_(scale)
    call = KernelCall(
        kernel=quantize_tokens_kernel if scale is None else quantize_at_once_kernel,
        variant="any",
        grid=lambda _: (num_tokens,),
        arguments={
            "x_ptr": x_TI,
            "steps_ptr": steps_TI,
            "scales_ptr": scales_T,
            "size": size,
            "stride_row": x_TI.stride(0),
        },
        constants=lambda numbers: {"BLOCK_N": numbers.block_n},
    )
    start(call, x_TI.device)
    return steps_TI, scales_T


def linear_int8_tokens(x_TI: torch.Tensor, scales_T: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    num_outputs, num_inputs = weight.weight.shape
    assert x_TI.is_contiguous()
    assert weight.weight.is_contiguous()
    out_TO = empty_product(x_TI, num_outputs, weight.activation_dtype)

    def constants(numbers: Launch) -> Constants:
        return {
            "HAS_BIAS": weight.bias is not None,
            "EVEN_K": num_inputs % numbers.block_k == 0,
            "BLOCK_M": numbers.block_m,
            "BLOCK_N": numbers.block_n,
            "BLOCK_K": numbers.block_k,
        }

    call = KernelCall(
        kernel=linear_int8_tokens_kernel,
        variant="any",
        grid=lambda numbers: num_tiles(len(x_TI), num_outputs, numbers.block_m, numbers.block_n),
        arguments={
            "x_ptr": x_TI,
            "token_scales_ptr": scales_T,
            "weight_ptr": weight.weight,
            "scales_ptr": weight.scales,
            "bias_ptr": weight.bias,
            "out_ptr": out_TO,
            "num_tokens": len(x_TI),
            "num_outputs": num_outputs,
            "num_inputs": num_inputs,
        },
        constants=constants,
    )
    start(call, x_TI.device)
    return out_TO
