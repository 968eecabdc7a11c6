"""Products on a GPU: which kernel takes which weight. Contract: Ops.linear and what it stands for."""

import torch

from kernels.int4_weight import Int4Weight
from kernels.int8_weight import Int8Weight
from kernels.linear import reference
from kernels.linear.gpu_int4 import linear_int4
from kernels.linear.gpu_int8 import linear_int8
from kernels.linear.gpu_int8_tokens import linear_int8_tokens, quantize_tokens
from kernels.ops import MOST_SKINNY_TOKENS, AnyWeight


def linear(x_TI: torch.Tensor, weight: AnyWeight) -> torch.Tensor:
    """A dense product is the vendor's own, through torch; another library's weight multiplies itself."""
    if isinstance(weight, Int4Weight):
        return linear_int4(x_TI, weight)
    if isinstance(weight, Int8Weight):
        if weight.takes_int8_tokens and len(x_TI) > MOST_SKINNY_TOKENS:
            tokens = quantize_tokens(x_TI.to(weight.activation_dtype), weight.input_scale)
            return linear_int8_tokens(*tokens, weight)
        return linear_int8(x_TI, weight)
    return reference.linear(x_TI, weight)
