"""Packs a model file's tensors into the native library, one at a time, quantized blocks as they are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.formats.dequantize import dequantize_rows
from appliance.formats.ggml_types import GGMLType
from appliance.formats.regroup import as_q8_0
from appliance.model.architectures import Architecture
from appliance.model.config import ModelConfig
from appliance.model.tensor_names import Slot
from appliance.precision_map import EMPTY_MAP, PrecisionMap
from appliance.runtime.checkpoint import Checkpoint, ModelFile, Progress, Rows
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


_TABLES = {Slot.EMBEDDING: Role.EMBEDDING, Slot.HEAD: Role.HEAD}
_ATTENTION = {
    Slot.QUERY: Role.QUERY,
    Slot.KEY: Role.KEY,
    Slot.VALUE: Role.VALUE,
    Slot.OUTPUT: Role.OUTPUT,
}
_FEED_FORWARD = {
    Slot.GATE: Role.GATE,
    Slot.UP: Role.UP,
    Slot.DOWN: Role.DOWN,
}
_EXPERTS = {Slot.EXPERT_GATE: Role.GATE, Slot.EXPERT_UP: Role.UP, Slot.EXPERT_DOWN: Role.DOWN}
_PLACES = {
    **dict.fromkeys((Slot.QUERY, Slot.KEY, Slot.VALUE), "qkv"),
    Slot.OUTPUT: "output",
    **dict.fromkeys((Slot.GATE, Slot.UP, Slot.EXPERT_GATE, Slot.EXPERT_UP), "gate_up"),
    **dict.fromkeys((Slot.DOWN, Slot.EXPERT_DOWN), "down"),
}
_NORMS = {
    Slot.ATTENTION_PRE_NORM: NormRole.ATTENTION_PRE,
    Slot.ATTENTION_POST_NORM: NormRole.ATTENTION_POST,
    Slot.FEED_FORWARD_PRE_NORM: NormRole.FFN_PRE,
    Slot.FEED_FORWARD_POST_NORM: NormRole.FFN_POST,
    Slot.QUERY_NORM: NormRole.QUERY,
    Slot.KEY_NORM: NormRole.KEY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingPlan:
    """How matrices are held: `linear` and `table` (embedding and head); None keeps the file's own values.

    Elements that are not quantized in the file become `linear_default` and `table_default` then. Quantized
    ones whose values no kernel takes as they are become 8 bits in groups of 32, in a table `table_default`.
    """

    linear: Kind | None
    table: Kind | None
    linear_default: Kind = Kind.CHANNEL8
    table_default: Kind = Kind.BF16
    precision_map: PrecisionMap = EMPTY_MAP

    def linear_of(self, slot: Slot, layer: int) -> Kind | None:
        return Kind.BF16 if f"{layer}.{_PLACES[slot]}" in self.precision_map.kept else self.linear


PLANS = {
    "auto": PackingPlan(linear=None, table=None),
    "int8": PackingPlan(linear=Kind.CHANNEL8, table=Kind.BF16),
    "int4": PackingPlan(linear=Kind.GROUP4_MIN, table=None),
    "int8-mixed": PackingPlan(linear=Kind.CHANNEL8, table=Kind.BF16),
    "bf16": PackingPlan(linear=Kind.BF16, table=Kind.BF16),
    "f32": PackingPlan(linear=Kind.F32, table=Kind.F32),
}


class NativeWeightLoader:
    """Feeds one file to one builder."""

    def __init__(
        self, file: ModelFile, builder: NativeModelBuilder, plan: PackingPlan, progress: Progress
    ) -> None:
        self._file = file
        self._builder = builder
        self._plan = plan
        self._progress = progress

    def load(self, architecture: Architecture, config: ModelConfig) -> None:
        """Pack every tensor. Raises BadModelFile naming a tensor that is missing, extra or misshapen."""
        source = Checkpoint(self._file, architecture, config, self._plan.precision_map.scales)
        self._table(source, Slot.EMBEDDING)
        if not config.ties_embeddings:
            self._table(source, Slot.HEAD)
        self._builder.set_norm(NormRole.FINAL, 0, source.norm(Slot.FINAL_NORM, 0, config.hidden_size))
        for layer in range(config.num_layers):
            for slot, role in _ATTENTION.items():
                self._linear(source, slot, role, layer)
            if config.experts is None:
                for slot, role in _FEED_FORWARD.items():
                    self._linear(source, slot, role, layer)
            else:
                self._experts(source, layer, config.experts.num_experts)
            for slot, size in source.norms():
                self._builder.set_norm(_NORMS[slot], layer, source.norm(slot, layer, size))
            self._progress((layer + 1) / config.num_layers)
        source.refuse_unused()

    def _table(self, source: Checkpoint, slot: Slot) -> None:
        kind, default = self._plan.table, self._plan.table_default
        rows, stored = _as_stored(source.rows(slot), kind)
        is_plain = kind is None and stored in _ELEMENT_TYPES
        self._builder.set_linear(_TABLES[slot], 0, rows, stored, kind=default if is_plain else kind)

    def _linear(self, source: Checkpoint, slot: Slot, role: Role, layer: int) -> None:
        matrix, bias = source.rows(slot, layer), source.bias(slot, layer)
        order = None if matrix.order is None else matrix.order.astype(np.int32)
        wanted = self._plan.linear_of(slot, layer)
        affine = matrix.affine() if wanted is None else None
        if affine is not None:
            self._builder.set_linear(
                role,
                layer,
                affine.quants,
                Source.AFFINE,
                kind=Kind.AFFINE4 if affine.num_bits == 4 else Kind.AFFINE8,
                scales=affine.scales,
                minima=affine.minima,
                order=order,
                bias=bias,
            )
            return
        rows, stored = _as_stored(matrix, wanted)
        kind = self._linear_kind(wanted, matrix, stored)
        self._builder.set_linear(role, layer, rows, stored, kind=kind, order=order, bias=bias)

    def _linear_kind(self, wanted: Kind | None, matrix: Rows, stored: Source) -> Kind | None:
        """The kind to pack as; None keeps quantized blocks as they are."""
        if wanted is not None or stored not in _ELEMENT_TYPES:
            return wanted
        is_plain = matrix.type in _SOURCES and not matrix.is_packed
        return self._plan.linear_default if is_plain else Kind.GROUP8

    def _experts(self, source: Checkpoint, layer: int, num_experts: int) -> None:
        router = source.rows(Slot.ROUTER, layer)
        # A choice between near equals must not turn on a rounded weight.
        values = router.read(0, len(router.raw))
        self._builder.set_linear(Role.ROUTER, layer, values, Source.F32, kind=Kind.F32)
        for slot, role in _EXPERTS.items():
            wanted = self._plan.linear_of(slot, layer)
            for expert in range(num_experts):
                matrix = source.rows(slot, layer, expert)
                rows, stored = _as_stored(matrix, wanted)
                kind = self._linear_kind(wanted, matrix, stored)
                self._builder.set_expert(role, layer, expert, rows, stored, kind=kind)


def _as_stored(matrix: Rows, kind: Kind | None) -> tuple[NDArray[np.generic], Source]:
    """The rows as they lie in the file where they can be packed so, else as float32."""
    source = _SOURCES.get(matrix.type)
    if source in _ELEMENT_TYPES:
        elements: NDArray[np.generic] = matrix.raw.view(_ELEMENT_TYPES[source])
        return elements, source
    if source is not None and kind is None:
        return matrix.raw, source
    blocks = as_q8_0(matrix.raw, matrix.type) if kind is None else None
    if blocks is not None:
        return blocks, Source.Q8_0
    values = np.empty((len(matrix.raw), matrix.num_columns), np.float32)
    dequantize_rows(matrix.raw, matrix.type, values)
    return values, Source.F32
