"""Which tile of a product a program computes, and how it is stored: shared by the products' kernels.

Tiles are channels by tokens: the weights then are a tensor core's first operand, which stays in registers
while it is converted, and a few tokens fill a small second one instead of wasting a tall first.
"""

import torch
import triton
import triton.language as tl

from kernels.ops import MOST_SKINNY_TOKENS


@triton.jit
def tile_of(num_tokens, num_outputs, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return this program's (first token, first channel). Eight channel tiles go together over all tokens, so
    that what runs at one time shares both operands in the cache."""
    num_token_tiles = tl.cdiv(num_tokens, BLOCK_M)
    num_channel_tiles = tl.cdiv(num_outputs, BLOCK_N)
    program = tl.program_id(0)
    group_size = 8 * num_token_tiles
    first_channel_tile = program // group_size * 8
    height = tl.minimum(num_channel_tiles - first_channel_tile, 8)
    channel_tile = first_channel_tile + program % group_size % height
    return program % group_size // height * BLOCK_M, channel_tile * BLOCK_N


@triton.jit
def store_tile(acc, out_ptr, bias_ptr, token, channel, num_tokens, num_outputs, HAS_BIAS: tl.constexpr):
    """Store channels by tokens into (T, O), with the bias added."""
    if HAS_BIAS:
        bias = tl.load(bias_ptr + channel, mask=channel < num_outputs, other=0.0)
        acc += bias.to(tl.float32)[:, None]
    at = token.to(tl.int64)[None, :] * num_outputs + channel[:, None]
    inside = (channel < num_outputs)[:, None] & (token < num_tokens)[None, :]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=inside)


def num_tiles(num_tokens: int, num_outputs: int, block_m: int, block_n: int) -> tuple[int]:
    """Return the grid that `tile_of` expects."""
    return (triton.cdiv(num_tokens, block_m) * triton.cdiv(num_outputs, block_n),)


def token_variant(num_tokens: int) -> str:
    """Name the numbers by how many tokens share a reading of the weights."""
    if num_tokens <= 16:
        return "16"
    return str(MOST_SKINNY_TOKENS) if num_tokens <= MOST_SKINNY_TOKENS else "many"


def empty_product(x_TI: torch.Tensor, num_outputs: int, dtype: torch.dtype) -> torch.Tensor:
    assert x_TI.ndim == 2
    assert x_TI.stride(1) == 1
    return torch.empty(len(x_TI), num_outputs, dtype=dtype, device=x_TI.device)
