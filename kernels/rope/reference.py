"""Rotary embedding in plain torch. Contract: Ops.rope."""

import torch


def rope(x_TND: torch.Tensor, cos_TR2: torch.Tensor, sin_TR2: torch.Tensor) -> torch.Tensor:
    half = cos_TR2.shape[-1]
    cos_T1R2, sin_T1R2 = cos_TR2[:, None], sin_TR2[:, None]
    first, second = x_TND[..., :half].float(), x_TND[..., half : 2 * half].float()
    turned = torch.cat((first * cos_T1R2 - second * sin_T1R2, second * cos_T1R2 + first * sin_T1R2), dim=-1)
    return torch.cat((turned.to(x_TND.dtype), x_TND[..., 2 * half :]), dim=-1)
