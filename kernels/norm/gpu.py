"""RMS norm on a GPU, with and without the residual's sum. Contracts: Ops.rms_norm, Ops.add_rms_norm."""

import torch
import triton
import triton.language as tl

from kernels.gpu_launch import Constants, KernelCall, next_power_of_two, start
from kernels.launch import Launch

# A row is held in registers from its sum of squares to its result: more warps for longer rows.
_VARIANTS = (("512", 512), ("2048", 2048), ("8192", 8192), ("32768", 32768))


@triton.jit
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    normed_ptr,
    sum_ptr,
    size,
    inner,
    stride_outer,
    stride_inner,
    eps,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    at = (row // inner) * stride_outer + (row % inner) * stride_inner + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        x += tl.load(residual_ptr + row * size + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(sum_ptr + row * size + column, x.to(sum_ptr.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    normed = x * scale * weight
    tl.store(normed_ptr + row * size + column, normed.to(normed_ptr.dtype.element_ty), mask=inside)


def rms_norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> torch.Tensor:
    normed_TH = torch.empty(x_TH.shape, dtype=x_TH.dtype, device=x_TH.device)
    _start(x_TH, None, weight_H, normed_TH, None, eps)
    return normed_TH


def add_rms_norm(
    x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    assert residual_TH.is_contiguous()
    normed_TH = torch.empty(x_TH.shape, dtype=x_TH.dtype, device=x_TH.device)
    sum_TH = torch.empty_like(residual_TH)
    _start(x_TH, residual_TH, weight_H, normed_TH, sum_TH, eps)
    return normed_TH, sum_TH


def _start(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight_H: torch.Tensor,
    normed: torch.Tensor,
    total: torch.Tensor | None,
    eps: float,
) -> None:
    """Rows lie evenly along each of the one or two axes before the last, so that a head's view of a wider
    tensor is read in place."""
    assert x.ndim in (2, 3)
    assert x.stride(-1) == 1
    size, inner = x.shape[-1], x.shape[1] if x.ndim == 3 else 1

    def constants(_: Launch) -> Constants:
        return {"ADDS": residual is not None, "BLOCK": next_power_of_two(size)}

    call = KernelCall(
        kernel=rms_norm_kernel,
        variant=next(name for name, most in _VARIANTS if size <= most),
        grid=lambda _: (x.numel() // size,),
        arguments={
            "x_ptr": x,
            "residual_ptr": residual,
            "weight_ptr": weight_H,
            "normed_ptr": normed,
            "sum_ptr": total,
            "size": size,
            "inner": inner,
            "stride_outer": x.stride(0),
            "stride_inner": x.stride(1) if x.ndim == 3 else 0,
            "eps": eps,
        },
        constants=constants,
    )
    start(call, x.device)
