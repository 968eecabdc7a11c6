"""The kernel table a model is built with. Each field's docstring is its formula and shapes: the contract.

Shape letters: T new tokens of a step, S sequences, H hidden size, I in and O out features, N query heads,
K KV heads, D head size, R rotary size, B blocks, V vocabulary. Every op accepts T = 0 nowhere and any
T >= 1 everywhere, and accumulates in float32 or wider. Slots below 0 belong to padding: nothing is written.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from kernels.int4_weight import Int4Weight
from kernels.int8_weight import Int8Weight
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


# Above this many tokens a product is bound by arithmetic rather than by reading weights.
MOST_SKINNY_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWeight:
    """A matrix (O, I) in another library's form: `multiply(x_TI)` gives (T, O), the bias included."""

    multiply: Callable[[torch.Tensor], torch.Tensor]
    num_bytes: int


AnyWeight = LinearWeight | Int8Weight | Int4Weight | ForeignWeight


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

    def to(self, device: torch.device) -> "RaggedQueries":
        return replace(
            self,
            query_starts=self.query_starts.to(device),
            context_lens=self.context_lens.to(device),
            block_tables=self.block_tables.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParams:
    """What a layer's attention does besides softmax: score scale, window in tokens, soft-cap."""

    scale: float
    window: int | None = None
    softcap: float | None = None


class QuantizeTokens(Protocol):
    def __call__(
        self, x_TI: torch.Tensor, scale: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


Embed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Linear = Callable[[torch.Tensor, AnyWeight], torch.Tensor]
LinearInt8 = Callable[[torch.Tensor, Int8Weight], torch.Tensor]
LinearInt4 = Callable[[torch.Tensor, Int4Weight], torch.Tensor]
LinearInt8Tokens = Callable[[torch.Tensor, torch.Tensor, Int8Weight], torch.Tensor]
SelectRows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
RmsNorm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
AddRmsNorm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
Rope = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
WriteKV = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, LayerKV], None]
RopeWriteKV = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, LayerKV],
    torch.Tensor,
]
CopyBlocks = Callable[[torch.Tensor, torch.Tensor, LayerKV], None]
PagedAttention = Callable[[torch.Tensor, LayerKV, RaggedQueries, AttentionParams], torch.Tensor]
Gated = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """One implementation of every operation."""

    embed: Embed
    """embed(token_ids_T, table_VH) -> (T, H): row token_ids[t] of the table."""

    linear: Linear
    """linear(x_TI, w) -> (T, O): x @ weight.T + bias, x taken and the product given in the weight's type.
    A quantized weight gives what linear_int8 or linear_int4 does; but where w.takes_int8_tokens and T is
    above MOST_SKINNY_TOKENS, what linear_int8_tokens does of quantize_tokens(x, w.input_scale)."""

    linear_int8: LinearInt8
    """linear_int8(x_TI, w) -> (T, O): (x @ weight.T) * scales + bias, x taken and the product given in
    w.activation_dtype."""

    linear_int4: LinearInt4
    """linear_int4(x_TI, w) -> (T, O): x @ dequantized.T + bias, likewise. An element is its 4 bits times its
    group's scale, plus the group's minimum; 16-bit kernels may round the element to the activation type."""

    quantize_tokens: QuantizeTokens
    """quantize_tokens(x_TI, scale) -> (int8 (T, I), float32 (T)): round(x / scale), at most 127 either way.
    The scale is the one given or, with None, max|x| / 127 per token, 0 where all are 0."""

    linear_int8_tokens: LinearInt8Tokens
    """linear_int8_tokens(x_int8_TI, scales_T, w) -> (T, O): (x @ weight.T summed as integers) * scales_T *
    w.scales + bias, given in w.activation_dtype."""

    rms_norm: RmsNorm
    """rms_norm(x_TH, weight_H, eps) -> (T, H): x / sqrt(mean(x^2) + eps) * weight, over the last axis."""

    add_rms_norm: AddRmsNorm
    """add_rms_norm(x_TH, residual_TH, weight_H, eps) -> (rms_norm(x + residual), x + residual). The sum is in
    the residual's type, which is float32: 16 bits lose a model's few large values, and with them its answer.
    The norm is in x's type: the product that x came from takes it so next."""

    rope: Rope
    """rope(x_TND, cos_TR2, sin_TR2) -> like x, or x itself turned in place: with a = x[..., :R/2] and
    b = x[..., R/2:R], (a cos - b sin, b cos + a sin); elements from R on unchanged."""

    write_kv: WriteKV
    """write_kv(key_TKD, value_TKD, slots_T, layer) -> None: slot s is page s // block_size, place s %
    block_size. INT8 pages store round(x / scale) with scale = max|x| / 127 per token and head, 0 where
    all are 0."""

    rope_write_kv: RopeWriteKV
    """rope_write_kv(query_TND, key_TKD, value_TKD, cos_TR2, sin_TR2, slots_T, layer) -> (T, N, D): query and
    key turned as by rope, key and value written as by write_kv, the turned query given."""

    copy_blocks: CopyBlocks
    """copy_blocks(sources_C, targets_C, layer) -> None: page targets[i] becomes a copy of page sources[i],
    keys, values and scales. No page is a target twice, nor both source and target."""

    attention: PagedAttention
    """attention(query_TND, layer, ragged, params) -> (T, N, D). A query at position p of its sequence
    sees keys at positions max(0, p - window + 1) to p: softmax(cap(scale q.k)) v, with cap(x) = softcap
    tanh(x / softcap) where set. Query head n reads KV head n // (N / K)."""

    gated_silu: Gated
    """gated_silu(gate_up_T2I) -> (T, I): silu(first half) * second half."""

    gated_gelu: Gated
    """gated_gelu(gate_up_T2I) -> (T, I): gelu(first half, tanh form) * second half."""

    select_rows: SelectRows
    """select_rows(x_TH, rows_R) -> (R, H): row rows[r] of x."""
