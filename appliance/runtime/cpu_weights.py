"""Packs a model file's tensors into the native library, one at a time, quantized blocks as they are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BadModelFile
from appliance.formats.dequantize import dequantize, dequantize_rows
from appliance.formats.ggml_types import GGMLType
from appliance.formats.gguf import GGUFFile
from appliance.model.architectures import Architecture
from appliance.model.config import ModelConfig
from appliance.runtime.weights import Progress, halves_from_pairs
from kernels.cpu.abi import Kind, NormRole, Role, Source
from kernels.cpu.native import NativeModelBuilder

_SOURCES = {
    GGMLType.F32: Source.F32,
    GGMLType.F16: Source.F16,
    GGMLType.BF16: Source.BF16,
    GGMLType.Q4_0: Source.Q4_0,
    GGMLType.Q4_1: Source.Q4_1,
    GGMLType.Q8_0: Source.Q8_0,
}
_ELEMENT_TYPES = {Source.F32: np.float32, Source.F16: np.float16, Source.BF16: np.uint16}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingPlan:
    """How matrices are held: `linear` and `table` (embedding and head); None keeps the file's own blocks.

    Elements that are not quantized in the file become `linear_default` and `table_default` then.
    """

    linear: Kind | None
    table: Kind | None
    linear_default: Kind = Kind.CHANNEL8
    table_default: Kind = Kind.BF16


PLANS = {
    "auto": PackingPlan(linear=None, table=None),
    "int8": PackingPlan(linear=Kind.CHANNEL8, table=Kind.BF16),
    "bf16": PackingPlan(linear=Kind.BF16, table=Kind.BF16),
    "f32": PackingPlan(linear=Kind.F32, table=Kind.F32),
}


class NativeWeightLoader:
    """Feeds one file to one builder."""

    def __init__(
        self, file: GGUFFile, builder: NativeModelBuilder, plan: PackingPlan, progress: Progress
    ) -> None:
        self._file = file
        self._builder = builder
        self._plan = plan
        self._progress = progress

    def load(self, architecture: Architecture, config: ModelConfig) -> None:
        """Pack every tensor. Raises BadModelFile naming a tensor that is missing or misshapen."""
        hidden, vocab = config.hidden_size, config.vocab_size
        self._table(Role.EMBEDDING, "token_embd", vocab, hidden)
        if not config.ties_embeddings:
            self._table(Role.HEAD, "output", vocab, hidden)
        self._norm(NormRole.FINAL, 0, "output_norm.weight", hidden)
        for layer in range(config.num_layers):
            self._layer(layer, architecture, config)
            self._progress((layer + 1) / config.num_layers)

    def _layer(self, layer: int, architecture: Architecture, config: ModelConfig) -> None:
        prefix, hidden, inner = f"blk.{layer}", config.hidden_size, config.intermediate_size
        query_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
        rope = config.ropes[layer] if architecture.permutes_qk else None
        has_bias = config.has_qkv_bias
        for role, name, shape, turn, is_biased in (
            (Role.QUERY, "attn_q", (query_size, hidden), rope, has_bias),
            (Role.KEY, "attn_k", (kv_size, hidden), rope, has_bias),
            (Role.VALUE, "attn_v", (kv_size, hidden), None, has_bias),
            (Role.OUTPUT, "attn_output", (hidden, query_size), None, False),
            (Role.GATE, "ffn_gate", (inner, hidden), None, False),
            (Role.UP, "ffn_up", (inner, hidden), None, False),
            (Role.DOWN, "ffn_down", (hidden, inner), None, False),
        ):
            order = None
            if turn is not None:
                num_heads = shape[0] // config.head_size
                order = halves_from_pairs(num_heads, config.head_size, turn.rotary_size).astype(np.int32)
            bias = dequantize(self._file, f"{prefix}.{name}.bias") if is_biased else None
            if bias is not None and order is not None:
                bias = bias[order]
            self._linear(role, layer, f"{prefix}.{name}.weight", shape, order, bias)
        self._norm(NormRole.ATTENTION_PRE, layer, f"{prefix}.attn_norm.weight", hidden)
        self._norm(NormRole.FFN_PRE, layer, f"{prefix}.ffn_norm.weight", hidden)

    def _table(self, role: Role, name: str, num_rows: int, num_columns: int) -> None:
        kind, default = self._plan.table, self._plan.table_default
        rows, source = self._rows(f"{name}.weight", (num_rows, num_columns), kind)
        self._builder.set_linear(role, 0, rows, source, kind=_kind(kind, default, source))

    def _linear(
        self,
        role: Role,
        layer: int,
        name: str,
        shape: tuple[int, int],
        order: NDArray[np.int32] | None,
        bias: NDArray[np.float32] | None,
    ) -> None:
        kind, default = self._plan.linear, self._plan.linear_default
        rows, source = self._rows(name, shape, kind)
        self._builder.set_linear(
            role, layer, rows, source, kind=_kind(kind, default, source), order=order, bias=bias
        )

    def _norm(self, role: NormRole, layer: int, name: str, size: int) -> None:
        self._check(name, (size,))
        self._builder.set_norm(role, layer, dequantize(self._file, name))

    def _rows(
        self, name: str, shape: tuple[int, int], kind: Kind | None
    ) -> tuple[NDArray[np.generic], Source]:
        """The tensor's rows as stored where they can be packed so, else as float32."""
        self._check(name, shape)
        ggml_type = self._file.tensor(name).type
        source = _SOURCES.get(ggml_type)
        raw = self._file.raw(name)
        if source in _ELEMENT_TYPES:
            elements: NDArray[np.generic] = raw.view(_ELEMENT_TYPES[source])
            return elements, source
        if source is not None and kind is None:
            return raw, source
        values = np.empty(shape, np.float32)
        dequantize_rows(raw, ggml_type, values)
        return values, Source.F32

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._file.tensor(name).shape
        if found != shape:
            raise BadModelFile(f"the tensor '{name}' has the shape {found} and the model needs {shape}")


def _kind(wanted: Kind | None, default: Kind, source: Source) -> Kind | None:
    """The kind to pack as; None keeps quantized blocks as they are."""
    if wanted is None and source in _ELEMENT_TYPES:
        return default
    return wanted
