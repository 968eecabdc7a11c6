"""RMS norm in plain torch, in float32 whatever comes in. Contracts: Ops.rms_norm, Ops.add_rms_norm."""

import torch


def rms_norm(x_TH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> torch.Tensor:
    x32_TH = x_TH.float()
    scale_T1 = torch.rsqrt(x32_TH.square().mean(-1, keepdim=True) + eps)
    return (x32_TH * scale_T1 * weight_H.float()).to(x_TH.dtype)


def add_rms_norm(
    x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    sum_TH = x_TH + residual_TH
    return rms_norm(sum_TH, weight_H, eps).to(x_TH.dtype), sum_TH
