"""RoPE and KV write in plain torch, one after the other. Contract: Ops.rope_write_kv."""

import torch

from kernels.kv.reference import write_kv
from kernels.kv_layout import LayerKV
from kernels.rope.reference import rope


def rope_write_kv(
    query_TND: torch.Tensor,
    key_TKD: torch.Tensor,
    value_TKD: torch.Tensor,
    cos_TR2: torch.Tensor,
    sin_TR2: torch.Tensor,
    slots_T: torch.Tensor,
    layer: LayerKV,
) -> torch.Tensor:
    write_kv(rope(key_TKD, cos_TR2, sin_TR2), value_TKD, slots_T, layer)
    return rope(query_TND, cos_TR2, sin_TR2)
