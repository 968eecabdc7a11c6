"""Products with dense and quantized matrices in plain torch. Contracts: Ops.linear and what it stands for."""

import torch
from torch.nn import functional

from kernels.int4_weight import Int4Weight, unpack_int4
from kernels.int8_weight import Int8Weight, quantize_at, quantize_rows, unpack_int8
from kernels.ops import MOST_SKINNY_TOKENS, AnyWeight, ForeignWeight


def linear(x_TI: torch.Tensor, weight: AnyWeight) -> torch.Tensor:
    if isinstance(weight, Int4Weight):
        return linear_int4(x_TI, weight)
    if isinstance(weight, Int8Weight):
        if weight.takes_int8_tokens and len(x_TI) > MOST_SKINNY_TOKENS:
            tokens = quantize_tokens(x_TI.to(weight.activation_dtype), weight.input_scale)
            return linear_int8_tokens(*tokens, weight)
        return linear_int8(x_TI, weight)
    if isinstance(weight, ForeignWeight):
        return weight.multiply(x_TI)
    return functional.linear(x_TI.to(weight.weight.dtype), weight.weight, weight.bias)


def linear_int8(x_TI: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    return _product(x_TI, unpack_int8(weight), weight)


def linear_int4(x_TI: torch.Tensor, weight: Int4Weight) -> torch.Tensor:
    return _product(x_TI, unpack_int4(weight), weight)


def quantize_tokens(x_TI: torch.Tensor, scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    if scale is None:
        return quantize_rows(x_TI)
    return quantize_at(x_TI, scale), torch.full((len(x_TI),), scale, device=x_TI.device)


def linear_int8_tokens(x_TI: torch.Tensor, scales_T: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    # Float64 holds every sum of products of two bytes exactly, on any device.
    sums_TO = x_TI.double() @ weight.weight.double().T
    out_TO = sums_TO * scales_T[:, None] * weight.scales
    return (out_TO if weight.bias is None else out_TO + weight.bias).to(weight.activation_dtype)


def _product(x_TI: torch.Tensor, rows_OI: torch.Tensor, weight: Int8Weight | Int4Weight) -> torch.Tensor:
    bias = None if weight.bias is None else weight.bias.float()
    x32_TI = x_TI.to(weight.activation_dtype).float()
    return functional.linear(x32_TI, rows_OI, bias).to(weight.activation_dtype)
