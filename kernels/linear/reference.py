"""Dense product in plain torch. Contract: Ops.linear."""

import torch
from torch.nn import functional

from kernels.ops import LinearWeight


def linear(x_TI: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    return functional.linear(x_TI.to(weight.weight.dtype), weight.weight, weight.bias)
