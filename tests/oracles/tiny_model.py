"""A random two-layer Llama as plain arrays, written to a file and loaded through the real loader."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from appliance.engine.batch import Batch, ScheduledSequence
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.formats.gguf import read_gguf
from appliance.runtime.backend import Backend, EagerBackend
from appliance.runtime.checkpoint import read_config
from appliance.runtime.inputs import build_inputs
from appliance.runtime.weights import WeightLoader
from formats.gguf_builder import Value, encode_tensor, tiny_llama_metadata, write_gguf
from kernels.kv_layout import KVLayout, KVOrder, KVType
from kernels.tables import reference_ops
from oracles.llama import LlamaShape

HIDDEN, INNER, VOCAB = 64, 96, 273
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """The arrays as float32, the shape, and what the file's metadata says."""

    tensors: dict[str, np.ndarray]
    shape: LlamaShape
    metadata: dict[str, Value]

    def write(self, path: Path, type_name: str = "F32") -> Path:
        stored = {
            name: encode_tensor(array, type_name if array.ndim == 2 else "F32")
            for name, array in self.tensors.items()
        }
        return write_gguf(path, self.metadata, stored)


def tiny_model(
    *,
    seed: int = 0,
    shape: LlamaShape = LlamaShape(),  # noqa: B008  # frozen
    has_bias: bool = False,
    has_head: bool = False,
    frequency_factors: tuple[float, ...] | None = None,
) -> TinyModel:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(size: int, centre: float) -> np.ndarray:
        return (centre + 0.2 * rng.standard_normal(size)).astype(np.float32)

    query_size, kv_size = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    # The embedding is as wide as the others so that layers matter as much as the token itself.
    tensors = {"token_embd.weight": 4 * matrix(VOCAB, HIDDEN), "output_norm.weight": vector(HIDDEN, 1.0)}
    for layer in range(shape.num_layers):
        own = {
            "attn_norm.weight": vector(HIDDEN, 1.0),
            "attn_q.weight": 2 * matrix(query_size, HIDDEN),
            "attn_k.weight": 2 * matrix(kv_size, HIDDEN),
            "attn_v.weight": matrix(kv_size, HIDDEN),
            "attn_output.weight": matrix(HIDDEN, query_size),
            "ffn_norm.weight": vector(HIDDEN, 1.0),
            "ffn_gate.weight": matrix(INNER, HIDDEN),
            "ffn_up.weight": matrix(INNER, HIDDEN),
            "ffn_down.weight": matrix(HIDDEN, INNER),
        }
        if has_bias:
            own |= {"attn_q.bias": vector(query_size, 0.0), "attn_k.bias": vector(kv_size, 0.0)}
            own |= {"attn_v.bias": vector(kv_size, 0.0)}
        tensors |= {f"blk.{layer}.{name}": array for name, array in own.items()}
    if has_head:
        tensors["output.weight"] = matrix(VOCAB, HIDDEN)
    if frequency_factors is not None:
        tensors["rope_freqs.weight"] = np.array(frequency_factors, dtype=np.float32)
    return TinyModel(tensors=tensors, shape=shape, metadata=_metadata(shape))


def _metadata(shape: LlamaShape) -> dict[str, Value]:
    metadata = tiny_llama_metadata(
        num_layers=shape.num_layers, num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads
    )
    metadata["llama.attention.key_length"] = shape.head_size
    metadata["llama.attention.value_length"] = shape.head_size
    metadata["llama.rope.dimension_count"] = shape.rotary_size
    metadata["llama.rope.freq_base"] = shape.theta
    metadata["llama.attention.layer_norm_rms_epsilon"] = shape.eps
    if shape.position_divisor != 1.0:
        metadata["llama.rope.scaling.type"] = "linear"
        metadata["llama.rope.scaling.factor"] = shape.position_divisor
    return metadata


def load_eager(
    path: Path,
    *,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    block_size: int = 16,
    order: KVOrder = KVOrder.BSKD,
    num_blocks: int = 64,
) -> EagerBackend:
    """Load a file onto the eager backend, with its KV pool."""
    with read_gguf(path) as file:
        architecture, config = read_config(file)
        weights = WeightLoader(file, dtype=dtype, device=CPU).load(architecture, config)
    layout = KVLayout(
        block_size=block_size,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        dtype=KVType.of(kv_dtype or dtype),
        order=order,
    )
    backend = EagerBackend(config, weights, reference_ops(), layout)
    backend.attach_kv(num_blocks)
    return backend


def logits_by_chunks(backend: Backend, token_ids: list[int], chunks: tuple[int, ...]) -> np.ndarray:
    """Run one sequence in these chunks; return the logits at each chunk's last token, (chunks, V)."""
    assert sum(chunks) == len(token_ids)
    block_size = backend.kv_layout.block_size
    num_blocks = -(-len(token_ids) // block_size)
    # Descending, so that an identity mapping would be noticed.
    table = tuple(BlockId(num_blocks - i) for i in range(num_blocks))
    rows, done = [], 0
    for chunk in chunks:
        scheduled = ScheduledSequence(
            sequence_id=SequenceId(1),
            new_token_ids=tuple(token_ids[done : done + chunk]),
            num_computed_tokens=done,
            block_table=table[: -(-(done + chunk) // block_size)],
            known_token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            sampling=SamplingParams(temperature=0.0, num_logprobs=0),  # which takes all logits
        )
        inputs = build_inputs(Batch(sequences=(scheduled,)), block_size=block_size)
        logits = backend.forward(inputs).logits
        assert logits is not None
        rows.append(logits.numpy())
        done += chunk
    return np.concatenate(rows)
