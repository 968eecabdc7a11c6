"""A random Llama from a file, through loader and decoder, against the formulas in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.kv_layout import KVOrder
from oracles.llama import LlamaShape, llama_logits
from oracles.tiny_model import TinyModel, load_eager, logits_by_chunks, tiny_model

TOKENS = np.random.default_rng(5).integers(0, 273, 40).tolist()
# Logits reach about 10, so this is five digits; the largest gap seen is 3e-5.
FLOAT32_MARGIN = 1e-4
CASES = {
    "plain": tiny_model(),
    "biases": tiny_model(has_bias=True),
    "untied head": tiny_model(has_head=True),
    "frequency factors": tiny_model(frequency_factors=(1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0)),
    "linear scaling": tiny_model(shape=LlamaShape(position_divisor=4.0)),
    "one KV head": tiny_model(shape=LlamaShape(num_kv_heads=1)),
    "as many KV heads as query heads": tiny_model(shape=LlamaShape(num_kv_heads=4)),
    "part of each head turns": tiny_model(shape=LlamaShape(rotary_size=6)),
    "heads wider than the hidden size": tiny_model(shape=LlamaShape(head_size=24, rotary_size=24)),
    "another theta and epsilon": tiny_model(shape=LlamaShape(theta=500_000.0, eps=1e-2)),
    "three layers": tiny_model(shape=LlamaShape(num_layers=3)),
    "everything": tiny_model(
        has_bias=True,
        has_head=True,
        shape=LlamaShape(num_layers=3, num_heads=6, num_kv_heads=2, head_size=10, rotary_size=8),
        frequency_factors=(1.0, 2.0, 3.0, 4.0),
    ),
}


def largest_gap(found: np.ndarray, expected: np.ndarray) -> float:
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("name", CASES)
def test_logits_agree_with_the_formulas_at_every_position(tmp_path: Path, name: str) -> None:
    model = CASES[name]
    backend = load_eager(model.write(tmp_path / "tiny.gguf"))
    expected = llama_logits(model.tensors, model.shape, TOKENS)
    found = logits_by_chunks(backend, TOKENS, (1,) * len(TOKENS))
    assert largest_gap(found, expected) < FLOAT32_MARGIN


@pytest.mark.parametrize("name", [name for name in CASES if name != "plain"])
def test_the_cases_differ_from_the_plain_model(name: str) -> None:
    """A case that changed nothing would prove nothing."""
    plain, other = CASES["plain"], CASES[name]
    changed = llama_logits(other.tensors, other.shape, TOKENS) - llama_logits(
        plain.tensors, plain.shape, TOKENS
    )
    assert np.abs(changed).max() > 100 * FLOAT32_MARGIN


@pytest.mark.parametrize("chunks", [(40,), (1,) * 40, (7, 1, 32), (16, 24), (39, 1)], ids=len)
@pytest.mark.parametrize(
    ("kv_dtype", "order", "block_size"),
    [
        (torch.float32, KVOrder.BSKD, 16),
        (torch.float32, KVOrder.BKSD, 7),
        (torch.int8, KVOrder.BSKD, 16),
        (torch.int8, KVOrder.BKSD, 64),
    ],
)
def test_a_prompt_in_chunks_ends_with_the_logits_of_the_whole(
    tmp_path: Path, chunks: tuple[int, ...], kv_dtype: torch.dtype, order: KVOrder, block_size: int
) -> None:
    path = CASES["everything"].write(tmp_path / "tiny.gguf")
    whole = load_eager(path, kv_dtype=kv_dtype)
    expected = logits_by_chunks(whole, TOKENS, (40,))
    backend = load_eager(path, kv_dtype=kv_dtype, order=order, block_size=block_size)
    found = logits_by_chunks(backend, TOKENS, chunks)
    assert len(found) == len(chunks)
    # An INT8 value on the border between two steps may fall to either side: a step is 1/127 of its head.
    margin = FLOAT32_MARGIN if kv_dtype == torch.float32 else 0.05
    assert largest_gap(found[-1:], expected) < margin


# Root mean square errors over that of the logits: what each type costs this model, with a third to spare.
PRECISION_COSTS = {torch.bfloat16: 0.02, torch.float16: 0.003}


@pytest.mark.parametrize("dtype", PRECISION_COSTS, ids=str)
def test_16_bit_weights_cost_no_more_than_their_mantissa(tmp_path: Path, dtype: torch.dtype) -> None:
    model = CASES["plain"]
    backend = load_eager(model.write(tmp_path / "tiny.gguf"), dtype=dtype)
    expected = llama_logits(model.tensors, model.shape, TOKENS)
    found = logits_by_chunks(backend, TOKENS, (1,) * len(TOKENS))
    error = float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))
    assert 0 < error < PRECISION_COSTS[dtype]


def test_int8_kv_costs_little(tmp_path: Path) -> None:
    model = CASES["plain"]
    backend = load_eager(model.write(tmp_path / "tiny.gguf"), kv_dtype=torch.int8)
    expected = llama_logits(model.tensors, model.shape, TOKENS)
    found = logits_by_chunks(backend, TOKENS, (1,) * len(TOKENS))
    error = float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))
    assert 1e-5 < error < 0.02


@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_every_stored_type_gives_the_logits_of_its_dequantized_values(tmp_path: Path, type_name: str) -> None:
    import gguf

    model = CASES["plain"]
    path = model.write(tmp_path / "tiny.gguf", type_name)
    # The file's values as an independent reader sees them.
    tensors = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
            tuple(reversed(tensor.shape.tolist()))
        )
        for tensor in gguf.GGUFReader(path).tensors
    }
    seen = TinyModel(tensors=tensors, shape=model.shape, metadata=model.metadata)
    expected = llama_logits(seen.tensors, seen.shape, TOKENS)
    found = logits_by_chunks(load_eager(path), TOKENS, (1,) * len(TOKENS))
    assert largest_gap(found, expected) < FLOAT32_MARGIN
