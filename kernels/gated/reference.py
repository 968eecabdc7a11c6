"""Gated activations in plain torch, in float32. Contracts: Ops.gated_silu, Ops.gated_gelu."""

import torch
from torch.nn import functional


def gated_silu(gate_up_T2I: torch.Tensor) -> torch.Tensor:
    gate_TI, up_TI = gate_up_T2I.chunk(2, dim=-1)
    return (functional.silu(gate_TI.float()) * up_TI.float()).to(gate_up_T2I.dtype)


def gated_gelu(gate_up_T2I: torch.Tensor) -> torch.Tensor:
    gate_TI, up_TI = gate_up_T2I.chunk(2, dim=-1)
    return (functional.gelu(gate_TI.float(), approximate="tanh") * up_TI.float()).to(gate_up_T2I.dtype)
