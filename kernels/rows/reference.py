"""Picking rows in plain torch. Contract: Ops.select_rows."""

import torch


def select_rows(x_TH: torch.Tensor, rows_R: torch.Tensor) -> torch.Tensor:
    return x_TH[rows_R]
