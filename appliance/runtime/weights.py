"""Named tensors from a model file to a device, one at a time. Knows GGUF's tensor names."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.dequantize import dequantize, dequantize_rows
from appliance.formats.gguf import GGUFFile
from appliance.model.architectures import Architecture, TensorFacts
from appliance.model.config import ModelConfig
from appliance.model.decoder import DecoderWeights, LayerWeights
from appliance.model.registry import find_architecture
from kernels.ops import LinearWeight

Progress = Callable[[float], None]
RowOrder = np.ndarray[tuple[int], np.dtype[np.int64]]
# Elements dequantized at once on the way to a 16-bit tensor: 4 MiB of float32.
_CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of a fused matrix from one tensor of the file; `row_order` is set where the file has another."""

    name: str
    num_rows: int
    row_order: RowOrder | None = None


def read_config(file: GGUFFile) -> tuple[Architecture, ModelConfig]:
    """Fill a ModelConfig from a file's metadata and tensor directory.

    Raises UnsupportedModel for an unknown architecture, BadModelFile for a missing key or tensor.
    """
    architecture = find_architecture(file.metadata_str("general.architecture"))
    factors = "rope_freqs.weight"
    facts = TensorFacts(
        vocab_size=file.tensor("token_embd.weight").shape[0],
        ties_embeddings="output.weight" not in file.tensors,
        has_qkv_bias="blk.0.attn_q.bias" in file.tensors,
        frequency_factors=tuple(dequantize(file, factors).tolist()) if factors in file.tensors else None,
    )
    return architecture, architecture.configure(file, facts)


class WeightLoader:
    """Reads one file's tensors into `dtype` tensors on `device`; holds one float32 chunk besides them."""

    def __init__(
        self, file: GGUFFile, *, dtype: torch.dtype, device: torch.device, progress: Progress = lambda _: None
    ) -> None:
        self._file = file
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._used = {"rope_freqs.weight"}

    def load(self, architecture: Architecture, config: ModelConfig) -> DecoderWeights:
        """Load every tensor. Raises BadModelFile naming a tensor that is missing, extra or misshapen."""
        if config.experts is not None:
            raise UnsupportedModel("mixtures of experts are not supported yet")
        hidden, vocab = config.hidden_size, config.vocab_size
        embedding = self._matrix((Part(name="token_embd.weight", num_rows=vocab),), hidden)
        head = embedding
        if not config.ties_embeddings:
            head = self._matrix((Part(name="output.weight", num_rows=vocab),), hidden)
        layers = []
        for index in range(config.num_layers):
            layers.append(self._layer(index, architecture, config))
            self._progress((index + 1) / config.num_layers)
        weights = DecoderWeights(
            embedding=embedding,
            layers=tuple(layers),
            final_norm=self._vector("output_norm.weight", hidden),
            head=LinearWeight(weight=head),
        )
        self._refuse_unused()
        return weights

    def _layer(self, index: int, architecture: Architecture, config: ModelConfig) -> LayerWeights:
        prefix = f"blk.{index}"
        hidden, inner = config.hidden_size, config.intermediate_size
        query_size = config.num_heads * config.head_size
        return LayerWeights(
            attention_norm=self._vector(f"{prefix}.attn_norm.weight", hidden),
            qkv=self._qkv(index, architecture, config),
            output=self._linear(f"{prefix}.attn_output", hidden, query_size),
            feed_forward_norm=self._vector(f"{prefix}.ffn_norm.weight", hidden),
            gate_up=LinearWeight(
                weight=self._matrix(
                    (
                        Part(name=f"{prefix}.ffn_gate.weight", num_rows=inner),
                        Part(name=f"{prefix}.ffn_up.weight", num_rows=inner),
                    ),
                    hidden,
                )
            ),
            down=self._linear(f"{prefix}.ffn_down", hidden, inner),
        )

    def _qkv(self, layer: int, architecture: Architecture, config: ModelConfig) -> LinearWeight:
        rope = config.ropes[layer] if architecture.permutes_qk else None
        sizes = (
            ("attn_q", config.num_heads, rope),
            ("attn_k", config.num_kv_heads, rope),
            ("attn_v", config.num_kv_heads, None),
        )

        def parts(kind: str) -> tuple[Part, ...]:
            return tuple(
                Part(
                    name=f"blk.{layer}.{name}.{kind}",
                    num_rows=heads * config.head_size,
                    row_order=None
                    if turn is None
                    else halves_from_pairs(heads, config.head_size, turn.rotary_size),
                )
                for name, heads, turn in sizes
            )

        bias = self._matrix(parts("bias"), 1).flatten() if config.has_qkv_bias else None
        return LinearWeight(weight=self._matrix(parts("weight"), config.hidden_size), bias=bias)

    def _linear(self, name: str, num_out: int, num_in: int) -> LinearWeight:
        return LinearWeight(weight=self._matrix((Part(name=f"{name}.weight", num_rows=num_out),), num_in))

    def _vector(self, name: str, size: int) -> torch.Tensor:
        self._check(name, (size,))
        return torch.from_numpy(dequantize(self._file, name)).to(self._device)

    def _matrix(self, parts: tuple[Part, ...], num_columns: int) -> torch.Tensor:
        """Stack the parts' rows into one (rows, columns) tensor, filled chunk by chunk."""
        num_rows = sum(part.num_rows for part in parts)
        out = torch.empty(num_rows, num_columns, dtype=self._dtype, device=self._device)
        start = 0
        for part in parts:
            self._fill(out[start : start + part.num_rows], part)
            start += part.num_rows
        return out

    def _fill(self, out: torch.Tensor, part: Part) -> None:
        num_rows, num_columns = out.shape
        is_vector = num_columns == 1
        self._check(part.name, (num_rows,) if is_vector else (num_rows, num_columns))
        raw = self._file.raw(part.name)
        if is_vector:
            raw = raw.reshape(num_rows, -1)
        if part.row_order is not None:
            raw = raw[part.row_order]
        step = max(1, _CHUNK_ELEMENTS // num_columns)
        for start in range(0, num_rows, step):
            chunk = np.empty((min(step, num_rows - start), num_columns), dtype=np.float32)
            dequantize_rows(raw[start : start + step], self._file.tensor(part.name).type, chunk)
            out[start : start + step].copy_(torch.from_numpy(chunk))

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        self._used.add(name)
        found = self._file.tensor(name).shape
        if found != shape:
            raise BadModelFile(f"the tensor '{name}' has the shape {found} and the model needs {shape}")

    def _refuse_unused(self) -> None:
        unused = sorted(set(self._file.tensors) - self._used)
        if unused:
            raise UnsupportedModel(
                f"the file holds {len(unused)} tensors that this architecture does not use, "
                f"such as '{unused[0]}'"
            )


def halves_from_pairs(num_heads: int, head_size: int, rotary_size: int) -> RowOrder:
    """Return the row order that puts heads stored for pairwise RoPE (0, R/2, 1, ...) back into halves.

    Rows of a head from `rotary_size` on do not turn and stay.
    """
    rows = np.arange(num_heads * head_size).reshape(num_heads, head_size)
    pairs = rows[:, :rotary_size].reshape(num_heads, -1, 2)
    halves = pairs.swapaxes(1, 2).reshape(num_heads, -1)
    return np.concatenate((halves, rows[:, rotary_size:]), axis=1).reshape(-1)
