"""The one decoder all architectures share, written over an Ops table. Knows neither files nor devices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from appliance.model.config import Activation, ModelConfig, RopeConfig
from appliance.model.experts import ExpertWeights, mix_experts
from appliance.model.rope_frequencies import inverse_frequencies
from appliance.model.rope_tables import rope_tables
from kernels.kv_layout import LayerKV
from kernels.ops import AnyWeight, AttentionParams, LinearWeight, Ops, RaggedQueries

RopeTables = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. `qkv` stacks query, key and value rows; `gate_up` stacks gate and up rows.

    Norms before and after a block are there as the config places them; so are `experts`, in place of
    `gate_up` and `down`. Query and key norms have the size of a head, or of all heads together.
    """

    qkv: AnyWeight  # ((N + 2 K) D, H)
    output: AnyWeight  # (H, N D)
    attention_norm: torch.Tensor | None = None  # (H)
    feed_forward_norm: torch.Tensor | None = None  # (H)
    attention_post_norm: torch.Tensor | None = None  # (H)
    feed_forward_post_norm: torch.Tensor | None = None  # (H)
    query_norm: torch.Tensor | None = None  # (D) or (N D)
    key_norm: torch.Tensor | None = None  # (D) or (K D)
    gate_up: AnyWeight | None = None  # (2 I, H)
    down: AnyWeight | None = None  # (H, I)
    experts: ExpertWeights | None = None

    def matrices(self) -> tuple[AnyWeight, ...]:
        experts = self.experts
        own = [m for m in (self.qkv, self.output, self.gate_up, self.down) if m is not None]
        return (*own, experts.router, *experts.gate_up, *experts.down) if experts else tuple(own)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """A whole network. With tied embeddings `head.weight` is `embedding`."""

    embedding: torch.Tensor  # (V, H)
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # (H)
    head: LinearWeight  # (V, H)

    @property
    def num_bytes(self) -> int:
        """Of the matrices; norms are too small to count."""
        tied = self.head.weight.data_ptr() == self.embedding.data_ptr()
        tables = self.embedding.nbytes + (0 if tied else self.head.num_bytes)
        return tables + sum(matrix.num_bytes for layer in self.layers for matrix in layer.matrices())


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInputs:
    """One step on a device: T new tokens of all sequences, and what is asked of which of them.

    A backend may leave the logits out where `wants_logits` is false, if it gives the `num_candidates` best
    tokens of each output row instead.
    """

    token_ids: torch.Tensor  # int64 (T)
    positions: torch.Tensor  # int64 (T)
    slots: torch.Tensor  # int64 (T)
    ragged: RaggedQueries
    output_rows: torch.Tensor  # int64 (R)
    num_candidates: int = 0
    wants_logits: bool = True
    wants_hidden: bool = True
    prompt_lens: tuple[int, ...] = ()  # (S), where known: tokens at positions below are of a prompt
    num_read_rows: int = 0  # of the output rows, at their end: inside prompts, where no token is chosen

    @property
    def is_decode(self) -> bool:
        """Whether every sequence has one new token and wants the next."""
        num_rows = len(self.output_rows)
        return len(self.token_ids) == self.ragged.num_sequences == num_rows and not self.num_read_rows

    def to(self, device: torch.device) -> "ForwardInputs":
        """Return the same step on a device."""
        return replace(
            self,
            token_ids=self.token_ids.to(device),
            positions=self.positions.to(device),
            slots=self.slots.to(device),
            ragged=self.ragged.to(device),
            output_rows=self.output_rows.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutputs:
    """Of the R output rows, in order."""

    logits: torch.Tensor | None  # float32 (R, V)
    hidden: torch.Tensor | None  # (R, H), after the final norm
    candidates: "Candidates | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The best tokens of each output row, best first. Id -1 where the row's logits are not finite."""

    ids: torch.Tensor  # int32 (R, k)
    logits: torch.Tensor  # float32 (R, k)


class Decoder:
    """Runs steps. Stateless but for its weights: the KV pages come with each call."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Ops) -> None:
        self._config = config
        self._weights = weights
        self._ops = ops
        self._gated = ops.gated_silu if config.activation is Activation.SILU else ops.gated_gelu
        device = weights.embedding.device
        self._frequencies: dict[RopeConfig, torch.Tensor] = {
            rope: torch.tensor(inverse_frequencies(rope), dtype=torch.float32, device=device)
            for rope in config.ropes
            if rope is not None
        }

    def forward(self, inputs: ForwardInputs, pages: Sequence[LayerKV]) -> ForwardOutputs:
        """Compute the step and write its keys and values into `pages` (one per layer)."""
        config, weights, ops = self._config, self._weights, self._ops
        ropes = {
            rope: rope_tables(inputs.positions, frequencies, rope.attention_factor)
            for rope, frequencies in self._frequencies.items()
        }
        residual_TH = ops.embed(inputs.token_ids, weights.embedding).float() * config.embedding_scale
        normed_TH = residual_TH
        if (first_norm := weights.layers[0].attention_norm) is not None:
            normed_TH = ops.rms_norm(residual_TH, first_norm, config.norm_eps)
        for index, layer in enumerate(weights.layers):
            rope = config.ropes[index]
            table = None if rope is None else ropes[rope]
            mixed_TH = self._attend(normed_TH, index, table, inputs, pages[index])
            normed_TH, residual_TH = self._join(
                mixed_TH, layer.attention_post_norm, residual_TH, layer.feed_forward_norm
            )
            fed_TH = self._feed_forward(normed_TH, layer)
            normed_TH, residual_TH = self._join(
                fed_TH, layer.feed_forward_post_norm, residual_TH, self._norm_after(index)
            )
        hidden_RH = ops.select_rows(normed_TH, inputs.output_rows)
        return ForwardOutputs(logits=self._logits(hidden_RH), hidden=hidden_RH)

    def _join(
        self,
        branch_TH: torch.Tensor,
        post_norm_H: torch.Tensor | None,
        residual_TH: torch.Tensor,
        next_norm_H: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a block's result to the residual stream; return the next block's input, and the stream."""
        config, ops = self._config, self._ops
        if post_norm_H is not None:
            branch_TH = ops.rms_norm(branch_TH.float(), post_norm_H, config.norm_eps)
        if config.residual_scale != 1.0:
            branch_TH = branch_TH * config.residual_scale
        if next_norm_H is not None:
            return ops.add_rms_norm(branch_TH, residual_TH, next_norm_H, config.norm_eps)
        residual_TH = residual_TH + branch_TH
        return residual_TH, residual_TH

    def _attend(
        self,
        normed_TH: torch.Tensor,
        index: int,
        rope: RopeTables | None,
        inputs: ForwardInputs,
        pages: LayerKV,
    ) -> torch.Tensor:
        config, ops, layer = self._config, self._ops, self._weights.layers[index]
        num_query, num_kv, head_size = config.num_heads, config.num_kv_heads, config.head_size
        heads_TND = ops.linear(normed_TH, layer.qkv).view(len(normed_TH), -1, head_size)
        query_TND, key_TKD, value_TKD = torch.split(heads_TND, [num_query, num_kv, num_kv], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query_TND = self._norm_heads(query_TND, layer.query_norm)
            key_TKD = self._norm_heads(key_TKD, layer.key_norm)
        if rope is None:
            ops.write_kv(key_TKD, value_TKD, inputs.slots, pages)
        else:
            query_TND = ops.rope_write_kv(query_TND, key_TKD, value_TKD, *rope, inputs.slots, pages)
        params = AttentionParams(
            scale=config.query_scale, window=config.window(index), softcap=config.attention_softcap
        )
        return ops.linear(ops.attention(query_TND, pages, inputs.ragged, params).flatten(1), layer.output)

    def _norm_heads(self, x_TND: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Norm each head, or all heads of a token at once, as the weight's size says."""
        rows = x_TND.reshape(-1, len(weight))
        return self._ops.rms_norm(rows, weight, self._config.norm_eps).view(x_TND.shape)

    def _feed_forward(self, normed_TH: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        ops, config = self._ops, self._config
        if layer.experts is not None and config.experts is not None:
            return mix_experts(normed_TH, layer.experts, config.experts, ops.linear, self._gated)
        assert layer.gate_up is not None
        assert layer.down is not None
        return ops.linear(self._gated(ops.linear(normed_TH, layer.gate_up)), layer.down)

    def _norm_after(self, index: int) -> torch.Tensor | None:
        """The norm that follows a layer: the next layer's first if it has one, or the final one."""
        layers = self._weights.layers
        return layers[index + 1].attention_norm if index + 1 < len(layers) else self._weights.final_norm

    def _logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        logits_RV = self._ops.linear(hidden_RH, self._weights.head).float() * self._config.logit_scale
        softcap = self._config.logit_softcap
        return logits_RV if softcap is None else torch.tanh(logits_RV / softcap) * softcap
