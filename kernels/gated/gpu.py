"""Gated activations on a GPU. Contracts: Ops.gated_silu, Ops.gated_gelu."""

import torch
import triton
import triton.language as tl

from kernels.gpu_launch import KernelCall, start


@triton.jit
def gated_kernel(gate_up_ptr, out_ptr, size, stride_row, GELU: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < size
    gate = tl.load(gate_up_ptr + row * stride_row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride_row + size + column, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # gelu(x), tanh form, is x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
        active = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        active = gate * tl.sigmoid(gate)
    tl.store(out_ptr + row * size + column, (active * up).to(out_ptr.dtype.element_ty), mask=inside)


def gated_silu(gate_up_T2I: torch.Tensor) -> torch.Tensor:
    return _gated(gate_up_T2I, is_gelu=False)


def gated_gelu(gate_up_T2I: torch.Tensor) -> torch.Tensor:
    return _gated(gate_up_T2I, is_gelu=True)


def _gated(gate_up_T2I: torch.Tensor, *, is_gelu: bool) -> torch.Tensor:
    assert gate_up_T2I.stride(1) == 1
    num_tokens, size = len(gate_up_T2I), gate_up_T2I.shape[1] // 2
    out_TI = torch.empty(num_tokens, size, dtype=gate_up_T2I.dtype, device=gate_up_T2I.device)
    call = KernelCall(
        kernel=gated_kernel,
        variant="any",
        grid=lambda numbers: (num_tokens, triton.cdiv(size, numbers.block_n)),
        arguments={
            "gate_up_ptr": gate_up_T2I,
            "out_ptr": out_TI,
            "size": size,
            "stride_row": gate_up_T2I.stride(0),
        },
        constants=lambda numbers: {"GELU": is_gelu, "BLOCK_N": numbers.block_n},
    )
    start(call, out_TI.device)
    return out_TI
