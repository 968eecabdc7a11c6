"""Paged attention in plain torch, one sequence after another, in float32. Contract: Ops.attention."""

import torch

from kernels.kv.reference import read_kv
from kernels.kv_layout import LayerKV
from kernels.ops import AttentionParams, RaggedQueries


def attention(
    query_TND: torch.Tensor, layer: LayerKV, ragged: RaggedQueries, params: AttentionParams
) -> torch.Tensor:
    out_TND = torch.empty_like(query_TND)
    for s, context_len in enumerate(ragged.host_context_lens):
        start, end = ragged.host_query_starts[s], ragged.host_query_starts[s + 1]
        num_blocks = -(-context_len // layer.layout.block_size)
        key_CKD, value_CKD = read_kv(layer, ragged.block_tables[s, :num_blocks], torch.float32)
        out_TND[start:end] = attend(
            query_TND[start:end].float(), key_CKD[:context_len], value_CKD[:context_len], params
        ).to(query_TND.dtype)
    return out_TND


def attend(
    query_QND: torch.Tensor, key_CKD: torch.Tensor, value_CKD: torch.Tensor, params: AttentionParams
) -> torch.Tensor:
    """Causal attention of the last Q of C positions. All the same floating dtype; returns (Q, N, D)."""
    num_queries, _, head_size = query_QND.shape
    context_len, num_kv_heads, _ = key_CKD.shape
    # A KV head's query heads are folded into the query axis: one product per KV head.
    query_KGQD = query_QND.view(num_queries, num_kv_heads, -1, head_size).permute(1, 2, 0, 3)
    scores_KGQC = query_KGQD.flatten(1, 2) @ key_CKD.permute(1, 2, 0) * params.scale
    if params.softcap is not None:
        scores_KGQC = torch.tanh(scores_KGQC / params.softcap) * params.softcap
    scores_KGQC = scores_KGQC.view(num_kv_heads, -1, num_queries, context_len)
    scores_KGQC.masked_fill_(~visible(num_queries, context_len, params.window, key_CKD.device), float("-inf"))
    out_KGQD = scores_KGQC.softmax(-1).flatten(1, 2) @ value_CKD.transpose(0, 1)
    return out_KGQD.view(num_kv_heads, -1, num_queries, head_size).permute(2, 0, 1, 3).reshape_as(query_QND)


def visible(num_queries: int, context_len: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Return (Q, C) bool: which keys each of the last Q positions sees."""
    positions_Q1 = torch.arange(context_len - num_queries, context_len, device=device)[:, None]
    positions_C = torch.arange(context_len, device=device)
    seen_QC = positions_C <= positions_Q1
    return seen_QC if window is None else seen_QC & (positions_C > positions_Q1 - window)
