"""Paged attention on a GPU: single new tokens by split contexts, longer runs by tiles.

Contract: Ops.attention.
"""

from itertools import pairwise

import torch

from kernels.attention.gpu_decode import start_decode
from kernels.attention.gpu_prefill import start_prefill
from kernels.kv_layout import LayerKV
from kernels.ops import AttentionParams, RaggedQueries


def attention(
    query_TND: torch.Tensor, layer: LayerKV, ragged: RaggedQueries, params: AttentionParams
) -> torch.Tensor:
    """Both kernels run over a mixed batch, each passing over the other's sequences on the device."""
    out_TND = torch.empty(query_TND.shape, dtype=query_TND.dtype, device=query_TND.device)
    starts = ragged.host_query_starts
    is_single = [end - first == 1 for first, end in pairwise(starts)]
    if any(is_single):
        start_decode(query_TND, layer, ragged, params, out_TND)
    if not all(is_single):
        start_prefill(query_TND, layer, ragged, params, out_TND)
    return out_TND
