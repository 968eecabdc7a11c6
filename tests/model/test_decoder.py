"""What other architectures switch on: scales, soft-caps, windows, layers without RoPE, the other gate."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.formats.gguf import read_gguf
from appliance.model.config import Activation, ModelConfig
from appliance.runtime.backend import EagerBackend, eager_kv_layout
from appliance.runtime.checkpoint import read_config
from appliance.runtime.weights import WeightLoader
from kernels.tables import reference_ops
from oracles.llama import llama_logits
from oracles.tiny_model import CPU, logits_by_chunks, tiny_model

TOKENS = np.random.default_rng(6).integers(0, 273, 30).tolist()
MODEL = tiny_model(seed=1)


def logits(tmp_path: Path, **changes: object) -> np.ndarray:
    with read_gguf(MODEL.write(tmp_path / "tiny.gguf")) as file:
        architecture, config = read_config(file)
        weights = WeightLoader(file, dtype=torch.float32, device=CPU).load(architecture, config)
    changed: ModelConfig = replace(config, **changes)
    backend = EagerBackend(changed, weights, reference_ops(), eager_kv_layout(changed, torch.float32))
    backend.attach_kv(8)
    return logits_by_chunks(backend, TOKENS, (1,) * len(TOKENS))


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    return llama_logits(MODEL.tensors, MODEL.shape, TOKENS)


def test_logits_are_scaled_and_then_capped(tmp_path: Path, plain: np.ndarray) -> None:
    found = logits(tmp_path, logit_scale=0.5, logit_softcap=3.0)
    assert np.abs(found - 3 * np.tanh(plain * 0.5 / 3)).max() < 1e-4


def test_an_embedding_scale_equals_scaled_rows(tmp_path: Path) -> None:
    scaled = MODEL.tensors | {"output.weight": MODEL.tensors["token_embd.weight"]}
    scaled["token_embd.weight"] = 3 * MODEL.tensors["token_embd.weight"]
    expected = llama_logits(scaled, MODEL.shape, TOKENS)
    assert np.abs(logits(tmp_path, embedding_scale=3.0) - expected).max() < 1e-4


def test_a_residual_scale_equals_scaled_output_matrices(tmp_path: Path) -> None:
    scaled = {
        name: 0.25 * values if name.endswith(("attn_output.weight", "ffn_down.weight")) else values
        for name, values in MODEL.tensors.items()
    }
    expected = llama_logits(scaled, MODEL.shape, TOKENS)
    assert np.abs(logits(tmp_path, residual_scale=0.25) - expected).max() < 1e-4


def test_an_attention_scale_equals_scaled_queries(tmp_path: Path) -> None:
    scaled = {
        name: 2 * values if name.endswith("attn_q.weight") else values
        for name, values in MODEL.tensors.items()
    }
    expected = llama_logits(scaled, MODEL.shape, TOKENS)
    assert np.abs(logits(tmp_path, attention_scale=2 * 16**-0.5) - expected).max() < 1e-4


def test_a_window_of_one_layer_changes_only_positions_past_it(tmp_path: Path, plain: np.ndarray) -> None:
    gaps = np.abs(logits(tmp_path, windows=(None, 7)) - plain).max(axis=1)
    assert gaps[:7].max() < 1e-4
    assert gaps[7:].min() > 1e-3


def test_a_layer_without_rope_still_turns_in_the_others(tmp_path: Path, plain: np.ndarray) -> None:
    rope = read_rope(tmp_path)
    one, none = logits(tmp_path, ropes=(rope, None)), logits(tmp_path, ropes=(None, None))
    # Without any position the first token alone is as before.
    assert np.abs(none[0] - plain[0]).max() < 1e-4
    for first, second in ((one, plain), (none, plain), (one, none)):
        assert np.abs(first[-1] - second[-1]).max() > 1e-2


@pytest.mark.parametrize(
    "changes", [{"activation": Activation.GELU_TANH}, {"attention_softcap": 0.5}], ids=["gelu", "softcap"]
)
def test_a_switch_reaches_its_operation(
    tmp_path: Path, plain: np.ndarray, changes: dict[str, object]
) -> None:
    assert np.abs(logits(tmp_path, **changes)[-1] - plain[-1]).max() > 1e-2


def read_rope(tmp_path: Path) -> object:
    with read_gguf(MODEL.write(tmp_path / "rope.gguf")) as file:
        return read_config(file)[1].ropes[0]
