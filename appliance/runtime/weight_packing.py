"""Quantizes matrices that arrive in chunks of rows, on the device that they are for. Knows no file."""

from collections.abc import Callable, Iterable

import torch

from kernels.int4_weight import GROUP_SIZE, Int4Weight, quantize_int4
from kernels.int8_weight import Int8Weight, quantize_rows
from kernels.ops import AnyWeight

# (float32 chunks of rows in order, bias) -> the whole matrix
Packing = Callable[[Iterable[torch.Tensor], torch.Tensor | None], AnyWeight]


def int8_packing(activation_dtype: torch.dtype, *, takes_int8_tokens: bool = True) -> Packing:
    """INT8 per output channel; products of many tokens may take them as INT8 too, where that is wanted."""

    def pack(chunks: Iterable[torch.Tensor], bias: torch.Tensor | None) -> AnyWeight:
        quantized = [quantize_rows(chunk) for chunk in chunks]
        return Int8Weight(
            weight=torch.cat([values for values, _ in quantized]),
            scales=torch.cat([scales for _, scales in quantized]),
            bias=bias,
            activation_dtype=activation_dtype,
            takes_int8_tokens=takes_int8_tokens,
        )

    return pack


def int4_packing(activation_dtype: torch.dtype) -> Packing:
    """4 bits in groups of 32 along the inputs; INT8 where the inputs are no whole groups."""
    pack_int8 = int8_packing(activation_dtype)

    def pack(chunks: Iterable[torch.Tensor], bias: torch.Tensor | None) -> AnyWeight:
        arriving = iter(chunks)
        first = next(arriving)
        if first.shape[1] % GROUP_SIZE:
            return pack_int8((first, *arriving), bias)
        parts = [quantize_int4(first), *map(quantize_int4, arriving)]
        return Int4Weight(
            packed=torch.cat([part.packed for part in parts], dim=1),
            scales=torch.cat([part.scales for part in parts], dim=1),
            minima=torch.cat([part.minima for part in parts if part.minima is not None], dim=1),
            num_inputs=first.shape[1],
            bias=bias,
            activation_dtype=activation_dtype,
        )

    return pack
