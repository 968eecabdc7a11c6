"""A model file's tensors by their place in the network, each checked for its shape. Reads no weights itself.

Knows what both kinds of file do to them: fused matrices, stacked experts, rows ordered for pairwise RoPE,
norms stored less one. Whoever loads weights asks here, and at the end for what nobody asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.dequantize import dequantize, dequantize_rows
from appliance.formats.ggml_types import GGMLType
from appliance.formats.gguf import GGUFFile
from appliance.formats.hf_folder import HFFolder
from appliance.formats.packed_linear import PackedLinear
from appliance.formats.regroup import AffineGroups, affine_groups
from appliance.formats.tensor_file import TensorFile
from appliance.model.architectures import Architecture, TensorFacts
from appliance.model.config import ModelConfig, NormPlacement, QKNorm
from appliance.model.gguf_shape import ROPE_VECTORS
from appliance.model.hf_config import HFConfig
from appliance.model.registry import find_architecture, find_hf_architecture
from appliance.model.rope_override import RopeOverride
from appliance.model.tensor_names import Slot
from appliance.precision_map import Scales
from appliance.runtime.channel_scales import ChannelScales

Bytes = NDArray[np.uint8]
RowOrder = NDArray[np.int64]

_STACKS = ((Slot.QUERY, Slot.KEY, Slot.VALUE), (Slot.GATE, Slot.UP))
# Tables that old files carry and nobody needs, and the parts of a network that do not read text.
_NEEDLESS_ENDINGS = ("rotary_emb.inv_freq", "attn_rot_embd.weight", *ROPE_VECTORS)
_NEEDLESS_BEGINNINGS = ("vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal")
# What the language model's tensors begin with in place of "model." where there is more than that.
_ROOTS = ("model.", "language_model.model.", "model.language_model.")

ModelFile = GGUFFile | HFFolder
# Called with the share of the layers that are loaded.
Progress = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Consecutive rows of one tensor as they lie in the file; `order[i]` is the row that becomes row i.

    `load` is called for the bytes when somebody asks: those of an AWQ or GPTQ matrix must be unpacked first.
    """

    load: Callable[[], Bytes]
    type: GGMLType
    num_columns: int
    order: RowOrder | None = None
    packed: Callable[[], PackedLinear | None] = lambda: None
    is_packed: bool = False  # integers in the file, whatever `type` says

    @cached_property
    def raw(self) -> Bytes:
        """The bytes, (rows, row_bytes)."""
        return self.load()

    def affine(self) -> AffineGroups | None:
        """The rows as integers with a scale and a minimum per 32 columns, where they have that form."""
        packed = self.packed()
        return affine_groups(self.raw, self.type) if packed is None else packed.affine()

    def read(self, start: int, end: int) -> NDArray[np.float32]:
        """Rows `start` to `end`, in order, as float32."""
        raw = self.raw[start:end] if self.order is None else self.raw[self.order[start:end]]
        values = np.empty((end - start, self.num_columns), dtype=np.float32)
        dequantize_rows(np.ascontiguousarray(raw), self.type, values)
        return values

    def scaled(self, columns: Scales | None, rows: Scales | None) -> "Rows":
        """Return these rows as float32 with each column multiplied, and each row divided, by its scale."""

        def load() -> Bytes:
            values = np.empty((len(self.raw), self.num_columns), dtype=np.float32)
            dequantize_rows(self.raw, self.type, values)
            if columns is not None:
                values *= columns
            if rows is not None:
                values /= rows[:, None]
            return values.view(np.uint8)

        return Rows(load=load, type=GGMLType.F32, num_columns=self.num_columns, order=self.order)


def read_config(
    file: ModelFile, served_context: int | None = None, rope: RopeOverride | None = None
) -> tuple[Architecture, ModelConfig]:
    """Fill a ModelConfig from a file's metadata and tensor directory, with another RoPE scaling if asked.

    Raises UnsupportedModel for an unknown architecture, BadModelFile for a missing key or tensor.
    """
    architecture, config = _stated_config(file, served_context)
    return architecture, config if rope is None else rope.apply(config)


def _stated_config(file: ModelFile, served_context: int | None) -> tuple[Architecture, ModelConfig]:
    if isinstance(file, GGUFFile):
        architecture = find_architecture(file.metadata_str("general.architecture"))
        embedding = f"{architecture.gguf_names[Slot.EMBEDDING]}.weight"
        return architecture, architecture.from_gguf(file, _facts(file, embedding, served_context))
    whole = HFConfig(file.config)
    architecture = find_hf_architecture(whole.get_str("model_type"))
    config = whole.get_object("text_config") or whole
    name = _rooted(f"{architecture.hf_names[Slot.EMBEDDING]}.weight", _root(file))
    return architecture, architecture.from_hf(config, _facts(file, name, served_context))


def _facts(file: TensorFile, embedding: str, served_context: int | None) -> TensorFacts:
    vectors = {name: tuple(dequantize(file, name).tolist()) for name in ROPE_VECTORS if name in file.tensors}
    return TensorFacts(
        vocab_size=file.tensor(embedding).shape[0],
        names=file.tensors.keys(),
        vectors=vectors,
        served_context=served_context,
    )


def _root(file: TensorFile) -> str:
    for root in _ROOTS:
        if f"{root}embed_tokens.weight" in file.tensors:
            return root
    return _ROOTS[0]


def _rooted(name: str, root: str) -> str:
    if name.startswith("model."):
        return root + name.removeprefix("model.")
    return name if root == "model." else f"language_model.{name}"


class Checkpoint:
    """One file's tensors for one network, with the scales of a precision map folded in."""

    def __init__(
        self,
        file: ModelFile,
        architecture: Architecture,
        config: ModelConfig,
        scales: Mapping[str, Scales] | None = None,
    ) -> None:
        self._file = file
        self._config = config
        self._is_gguf = isinstance(file, GGUFFile)
        self._names = architecture.gguf_names if self._is_gguf else architecture.hf_names
        self._root = "model." if self._is_gguf else _root(file)
        self._permutes = self._is_gguf and architecture.gguf_permutes_qk
        self._norm_offset = 1.0 if architecture.hf_norms_add_one and not self._is_gguf else 0.0
        self._used: set[str] = set()
        self._scales = ChannelScales(scales or {}, config)

    def norms(self) -> Iterator[tuple[Slot, int]]:
        """The norms that every layer has, with their sizes."""
        config = self._config
        if config.norm_placement is not NormPlacement.POST:
            yield from ((slot, config.hidden_size) for slot in _PRE_NORMS)
        if config.norm_placement is not NormPlacement.PRE:
            yield from ((slot, config.hidden_size) for slot in _POST_NORMS)
        if config.qk_norm is not QKNorm.NONE:
            is_full = config.qk_norm is QKNorm.FULL
            yield Slot.QUERY_NORM, config.head_size * (config.num_heads if is_full else 1)
            yield Slot.KEY_NORM, config.head_size * (config.num_kv_heads if is_full else 1)

    def norm(self, slot: Slot, layer: int, size: int) -> NDArray[np.float32]:
        """A norm's weight as it multiplies. Raises BadModelFile."""
        name = f"{self._name(slot, layer)}.weight"
        self._check(name, (size,))
        values = dequantize(self._file, name) + np.float32(self._norm_offset)
        if slot in (Slot.QUERY_NORM, Slot.KEY_NORM) and self._permutes:
            raise UnsupportedModel("norms of queries and keys in a file with pairwise RoPE are not supported")
        scales = self._scales.of_norm(slot, layer)
        return values if scales is None else values / scales

    def rows(self, slot: Slot, layer: int = 0, expert: int = 0) -> Rows:
        """A matrix of the network. Raises BadModelFile naming a tensor that is missing or misshapen."""
        num_rows, num_columns = self.shape(slot)
        name = f"{self._name(slot, layer, expert)}.weight"
        first, total = self._place(slot)
        leading: tuple[int, ...] = (total,)
        if slot in _EXPERT_SLOTS and "{expert}" not in self._names[slot]:
            first, leading = expert * num_rows, (self._num_experts(), num_rows)
        self._check(name, (*leading, num_columns))
        rows = Rows(
            load=lambda: self._file.raw(name)[first : first + num_rows],
            # A fused matrix is read as plain rows.
            packed=lambda: self._packed(name) if total == num_rows else None,
            is_packed=self._file.tensor(name).packed_bits is not None,
            type=self._file.tensor(name).type,
            num_columns=num_columns,
            order=self._order(slot, layer),
        )
        columns, outputs = self._scales.of_columns(slot, layer), self._scales.of_rows(slot, layer)
        return rows if columns is None and outputs is None else rows.scaled(columns, outputs)

    def bias(self, slot: Slot, layer: int) -> NDArray[np.float32] | None:
        """A matrix's bias in the order of its rows, None where the network has none. Raises BadModelFile."""
        if not self._has_bias(slot):
            return None
        name = f"{self._name(slot, layer)}.bias"
        first, total = self._place(slot)
        self._check(name, (total,))
        values = dequantize(self._file, name)[first : first + self.shape(slot)[0]]
        if (scales := self._scales.of_rows(slot, layer)) is not None:
            values = values / scales
        order = self._order(slot, layer)
        return values if order is None else values[order]

    def shape(self, slot: Slot) -> tuple[int, int]:
        """A matrix's rows and columns."""
        config, hidden = self._config, self._config.hidden_size
        query_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
        inner = config.intermediate_size
        expert_inner = config.experts.intermediate_size if config.experts else 0
        return {
            Slot.EMBEDDING: (config.vocab_size, hidden), Slot.HEAD: (config.vocab_size, hidden),
            Slot.QUERY: (query_size, hidden), Slot.KEY: (kv_size, hidden), Slot.VALUE: (kv_size, hidden),
            Slot.OUTPUT: (hidden, query_size), Slot.GATE: (inner, hidden), Slot.UP: (inner, hidden),
            Slot.DOWN: (hidden, inner), Slot.ROUTER: (self._num_experts(), hidden),
            Slot.EXPERT_GATE: (expert_inner, hidden), Slot.EXPERT_UP: (expert_inner, hidden),
            Slot.EXPERT_DOWN: (hidden, expert_inner),
        }[slot]  # fmt: skip

    def refuse_unused(self) -> None:
        """Raise UnsupportedModel naming a tensor that no part of the network asked for."""
        needless = {f"{self._name(Slot.HEAD, 0)}.weight"} if self._config.ties_embeddings else set()
        unused = sorted(
            name
            for name in set(self._file.tensors) - self._used - needless
            if not name.endswith(_NEEDLESS_ENDINGS) and not name.startswith(_NEEDLESS_BEGINNINGS)
        )
        if unused:
            raise UnsupportedModel(
                f"the file holds {len(unused)} tensors that this architecture does not use, "
                f"such as '{unused[0]}'"
            )

    def _packed(self, name: str) -> PackedLinear | None:
        return self._file.packed(name) if isinstance(self._file, HFFolder) else None

    def _num_experts(self) -> int:
        return self._config.experts.num_experts if self._config.experts else 0

    def _name(self, slot: Slot, layer: int, expert: int = 0) -> str:
        name = self._names[slot].format(layer=layer, expert=expert)
        return name if self._is_gguf else _rooted(name, self._root)

    def _place(self, slot: Slot) -> tuple[int, int]:
        """Where a matrix's rows begin in its tensor, and how many that has."""
        for stack in _STACKS:
            if slot in stack:
                shared = [each for each in stack if self._names[each] == self._names[slot]]
                sizes = [self.shape(each)[0] for each in shared]
                return sum(sizes[: shared.index(slot)]), sum(sizes)
        return 0, self.shape(slot)[0]

    def _order(self, slot: Slot, layer: int) -> RowOrder | None:
        rope = self._config.ropes[layer]
        if not self._permutes or slot not in (Slot.QUERY, Slot.KEY):
            return None
        heads = self.shape(slot)[0] // self._config.head_size
        # Rows of a layer that leaves positions alone are permuted with the others, and may stay so.
        return None if rope is None else halves_from_pairs(heads, self._config.head_size, rope.rotary_size)

    def _has_bias(self, slot: Slot) -> bool:
        config = self._config
        if slot in (Slot.QUERY, Slot.KEY, Slot.VALUE):
            return config.has_qkv_bias
        if slot is Slot.OUTPUT:
            return config.has_output_bias
        return slot in (Slot.GATE, Slot.UP, Slot.DOWN) and config.has_feed_forward_bias

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        self._used.add(name)
        found = self._file.tensor(name).shape
        if found != shape:
            raise BadModelFile(f"the tensor '{name}' has the shape {found} and the model needs {shape}")


_PRE_NORMS = (Slot.ATTENTION_PRE_NORM, Slot.FEED_FORWARD_PRE_NORM)
_POST_NORMS = (Slot.ATTENTION_POST_NORM, Slot.FEED_FORWARD_POST_NORM)
_EXPERT_SLOTS = (Slot.EXPERT_GATE, Slot.EXPERT_UP, Slot.EXPERT_DOWN)


def halves_from_pairs(num_heads: int, head_size: int, rotary_size: int) -> RowOrder:
    """Return the row order that puts heads stored for pairwise RoPE (0, R/2, 1, ...) back into halves.

    Rows of a head from `rotary_size` on do not turn and stay.
    """
    rows = np.arange(num_heads * head_size).reshape(num_heads, head_size)
    pairs = rows[:, :rotary_size].reshape(num_heads, -1, 2)
    halves = pairs.swapaxes(1, 2).reshape(num_heads, -1)
    return np.concatenate((halves, rows[:, rotary_size:]), axis=1).reshape(-1)
