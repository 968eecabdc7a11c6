"""Picking rows on a GPU. Contract: Ops.select_rows."""

import torch
import triton
import triton.language as tl

from kernels.gpu_launch import KernelCall, start


@triton.jit
def select_rows_kernel(x_ptr, rows_ptr, out_ptr, size, stride_row, BLOCK_N: tl.constexpr):
    target = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < size
    source = tl.load(rows_ptr + target).to(tl.int64)
    tl.store(
        out_ptr + target * size + column,
        tl.load(x_ptr + source * stride_row + column, mask=inside),
        mask=inside,
    )


def select_rows(x_TH: torch.Tensor, rows_R: torch.Tensor) -> torch.Tensor:
    assert x_TH.stride(1) == 1
    size = x_TH.shape[1]
    out_RH = torch.empty(len(rows_R), size, dtype=x_TH.dtype, device=x_TH.device)
    if len(rows_R) == 0:
        return out_RH
    call = KernelCall(
        kernel=select_rows_kernel,
        variant="any",
        grid=lambda numbers: (len(rows_R), triton.cdiv(size, numbers.block_n)),
        arguments={
            "x_ptr": x_TH,
            "rows_ptr": rows_R,
            "out_ptr": out_RH,
            "size": size,
            "stride_row": x_TH.stride(0),
        },
        constants=lambda numbers: {"BLOCK_N": numbers.block_n},
    )
    start(call, out_RH.device)
    return out_RH
