"""The kernel table a model is built with. Each field's docstring is its formula and shapes: the contract.

Shape letters: T new tokens of a step, S sequences, H hidden size, I in and O out features, N query heads,
K KV heads, D head size, R rotary size, B blocks, V vocabulary. Every op accepts T = 0 nowhere and any
T >= 1 everywhere, and accumulates in float32 or wider.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.kv_layout import LayerKV


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWeight:
    """A dense matrix: `weight` (O, I), optional `bias` (O)."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        bias_bytes = 0 if self.bias is None else self.bias.nbytes
        return self.weight.nbytes + bias_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedQueries:
    """Which tokens of a step belong to which sequence, and where their context lies.

    Sequence s owns new tokens `query_starts[s] : query_starts[s + 1]`, the last of its
    `context_lens[s]` tokens; its pages are `block_tables[s]`, padded with 0. The host copies are lists
    so that a kernel's launch needs no read from the device.
    """

    query_starts: torch.Tensor  # int32 (S + 1)
    context_lens: torch.Tensor  # int32 (S), new tokens included
    block_tables: torch.Tensor  # int32 (S, most blocks of any)
    host_query_starts: tuple[int, ...]
    host_context_lens: tuple[int, ...]

    @property
    def num_sequences(self) -> int:
        return len(self.host_context_lens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParams:
    """What a layer's attention does besides softmax: score scale, window in tokens, soft-cap."""

    scale: float
    window: int | None = None
    softcap: float | None = None


Embed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Linear = Callable[[torch.Tensor, LinearWeight], torch.Tensor]
RmsNorm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
AddRmsNorm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
Rope = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
WriteKV = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, LayerKV], None]
PagedAttention = Callable[[torch.Tensor, LayerKV, RaggedQueries, AttentionParams], torch.Tensor]
Gated = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """One implementation of every operation."""

    embed: Embed
    """embed(token_ids_T, table_VH) -> (T, H): row token_ids[t] of the table."""

    linear: Linear
    """linear(x_TI, w) -> (T, O): x @ weight.T + bias, x taken and the product given in the weight's type."""

    rms_norm: RmsNorm
    """rms_norm(x_TH, weight_H, eps) -> (T, H): x / sqrt(mean(x^2) + eps) * weight, over the last axis."""

    add_rms_norm: AddRmsNorm
    """add_rms_norm(x_TH, residual_TH, weight_H, eps) -> (rms_norm(x + residual), x + residual), both in the
    residual's type, which is float32: 16 bits lose a model's few large values, and with them its answer."""

    rope: Rope
    """rope(x_TND, cos_TR2, sin_TR2) -> like x, or x itself turned in place: with a = x[..., :R/2] and
    b = x[..., R/2:R], (a cos - b sin, b cos + a sin); elements from R on unchanged."""

    write_kv: WriteKV
    """write_kv(key_TKD, value_TKD, slots_T, layer) -> None: slot s is page s // block_size, place s %
    block_size. INT8 pages store round(x / scale) with scale = max|x| / 127 per token and head, 0 where
    all are 0."""

    attention: PagedAttention
    """attention(query_TND, layer, ragged, params) -> (T, N, D). A query at position p of its sequence
    sees keys at positions max(0, p - window + 1) to p: softmax(cap(scale q.k)) v, with cap(x) = softcap
    tanh(x / softcap) where set. Query head n reads KV head n // (N / K)."""

    gated_silu: Gated
    """gated_silu(gate_up_T2I) -> (T, I): silu(first half) * second half."""

    gated_gelu: Gated
    """gated_gelu(gate_up_T2I) -> (T, I): gelu(first half, tanh form) * second half."""
