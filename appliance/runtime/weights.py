"""Named tensors from a model file to a device, one at a time. Knows no file's names for them."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from appliance.model.architectures import Architecture
from appliance.model.config import ModelConfig
from appliance.model.decoder import DecoderWeights, LayerWeights
from appliance.model.experts import ExpertWeights
from appliance.model.tensor_names import Slot
from appliance.precision_map import EMPTY_MAP, PrecisionMap
from appliance.runtime.checkpoint import Checkpoint, ModelFile, Progress, Rows
from appliance.runtime.weight_packing import Packing
from kernels.int8_weight import Int8Weight
from kernels.ops import AnyWeight, LinearWeight

# Elements dequantized at once on the way to a 16-bit tensor: 4 MiB of float32.
_CHUNK_ELEMENTS = 1 << 20
_NORM_FIELDS = {
    Slot.ATTENTION_PRE_NORM: "attention_norm",
    Slot.ATTENTION_POST_NORM: "attention_post_norm",
    Slot.FEED_FORWARD_PRE_NORM: "feed_forward_norm",
    Slot.FEED_FORWARD_POST_NORM: "feed_forward_post_norm",
    Slot.QUERY_NORM: "query_norm",
    Slot.KEY_NORM: "key_norm",
}


class WeightLoader:
    """Reads one file's tensors into `dtype` tensors on `device`; holds one float32 chunk besides them.

    With a packing the layers' matrices, but for routers and those that the precision map keeps, become
    what it makes of them.
    """

    def __init__(
        self,
        file: ModelFile,
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress = lambda _: None,
        packing: Packing | None = None,
        precision_map: PrecisionMap = EMPTY_MAP,
    ) -> None:
        self._file = file
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._packing = packing
        self._map = precision_map

    def load(self, architecture: Architecture, config: ModelConfig) -> DecoderWeights:
        """Load every tensor. Raises BadModelFile naming a tensor that is missing, extra or misshapen."""
        source = Checkpoint(self._file, architecture, config, self._map.scales)
        embedding = self._stack([source.rows(Slot.EMBEDDING)])
        head = embedding if config.ties_embeddings else self._stack([source.rows(Slot.HEAD)])
        layers = []
        for index in range(config.num_layers):
            layers.append(self._layer(source, index, config))
            self._progress((index + 1) / config.num_layers)
        final_norm = source.norm(Slot.FINAL_NORM, 0, config.hidden_size)
        source.refuse_unused()
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(layers),
            final_norm=torch.from_numpy(final_norm).to(self._device),
            head=LinearWeight(weight=head),
        )

    def _layer(self, source: Checkpoint, index: int, config: ModelConfig) -> LayerWeights:
        norms = {
            _NORM_FIELDS[slot]: torch.from_numpy(source.norm(slot, index, size)).to(self._device)
            for slot, size in source.norms()
        }
        is_dense = config.experts is None
        return LayerWeights(
            qkv=self._linear(source, index, "qkv", Slot.QUERY, Slot.KEY, Slot.VALUE),
            output=self._linear(source, index, "output", Slot.OUTPUT),
            gate_up=self._linear(source, index, "gate_up", Slot.GATE, Slot.UP) if is_dense else None,
            down=self._linear(source, index, "down", Slot.DOWN) if is_dense else None,
            experts=self._experts(source, index, config.experts.num_experts) if config.experts else None,
            **norms,
        )

    def _experts(self, source: Checkpoint, layer: int, num_experts: int) -> ExpertWeights:
        def expert(index: int, place: str, *slots: Slot) -> AnyWeight:
            return self._matrix([source.rows(slot, layer, index) for slot in slots], f"{layer}.{place}", None)

        return ExpertWeights(
            router=LinearWeight(weight=self._stack([source.rows(Slot.ROUTER, layer)])),
            gate_up=tuple(expert(i, "gate_up", Slot.EXPERT_GATE, Slot.EXPERT_UP) for i in range(num_experts)),
            down=tuple(expert(i, "down", Slot.EXPERT_DOWN) for i in range(num_experts)),
        )

    def _linear(self, source: Checkpoint, layer: int, place: str, *slots: Slot) -> AnyWeight:
        parts = [part for slot in slots if (part := source.bias(slot, layer)) is not None]
        bias = torch.cat([torch.from_numpy(part) for part in parts]) if parts else None
        return self._matrix(
            [source.rows(slot, layer) for slot in slots],
            f"{layer}.{place}",
            None if bias is None else bias.to(self._device, self._dtype),
        )

    def _matrix(self, parts: list[Rows], name: str, bias: torch.Tensor | None) -> AnyWeight:
        if self._packing is None or name in self._map.kept:
            return LinearWeight(weight=self._stack(parts), bias=bias)
        packed = self._packing((chunk.to(self._device) for chunk in _chunks(parts)), bias)
        if isinstance(packed, Int8Weight):
            return replace(packed, input_scale=self._map.input_scales.get(name))
        return packed

    def _stack(self, parts: list[Rows]) -> torch.Tensor:
        """Stack the parts' rows into one (rows, columns) tensor, filled chunk by chunk."""
        num_rows, num_columns = sum(len(part.raw) for part in parts), parts[0].num_columns
        out = torch.empty(num_rows, num_columns, dtype=self._dtype, device=self._device)
        at = 0
        for chunk in _chunks(parts):
            out[at : at + len(chunk)].copy_(chunk)
            at += len(chunk)
        return out


def _chunks(parts: list[Rows]) -> Iterator[torch.Tensor]:
    """The parts' rows in order, as float32 in main memory."""
    step = max(1, _CHUNK_ELEMENTS // parts[0].num_columns)
    for part in parts:
        for start in range(0, len(part.raw), step):
            yield torch.from_numpy(part.read(start, min(start + step, len(part.raw))))
