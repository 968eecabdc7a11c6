"""Embedding lookup in plain torch. Contract: Ops.embed."""

import torch
from torch.nn import functional


def embed(token_ids_T: torch.Tensor, table_VH: torch.Tensor) -> torch.Tensor:
    return functional.embedding(token_ids_T, table_VH)
