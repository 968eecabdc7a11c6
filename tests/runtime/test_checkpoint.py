"""What a model file must hold: everything its architecture needs, by name, and nothing else."""

from pathlib import Path

import numpy as np
import pytest

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.hf_folder import read_hf_folder
from appliance.model.config import RopeScaling
from appliance.model.rope_frequencies import inverse_frequencies
from appliance.model.rope_override import RopeOverride
from appliance.runtime.checkpoint import read_config
from formats.safetensors_builder import write_hf_folder
from oracles.hf_model import eager_from_folder, recorded_model
from oracles.tiny_model import logits_by_chunks


def test_an_unknown_model_type_is_refused_by_name_with_the_known_ones(tmp_path: Path) -> None:
    model = recorded_model("llama 2")
    path = write_hf_folder(tmp_path / "x", model.config | {"model_type": "mamba2"}, model.weights)
    with read_hf_folder(path) as folder, pytest.raises(UnsupportedModel, match=r"'mamba2'.*gemma3.*qwen3"):
        read_config(folder)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("qwen2", "model.layers.1.self_attn.k_proj.bias"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight"),
        ("gemma2", "model.layers.2.pre_feedforward_layernorm.weight"),
        ("phi3, long", "model.layers.0.mlp.gate_up_proj.weight"),
        ("mixtral", "model.layers.1.block_sparse_moe.experts.3.w2.weight"),
        ("olmo2", "model.norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, case: str, name: str) -> None:
    model = recorded_model(case)
    weights = {key: value for key, value in model.weights.items() if key != name}
    with pytest.raises(BadModelFile, match=f"'{name}' is missing"):
        eager_from_folder(write_hf_folder(tmp_path / "x", model.config, weights))


def test_a_tensor_that_nothing_uses_is_named(tmp_path: Path) -> None:
    model = recorded_model("qwen3")
    extra = {"model.layers.0.self_attn.q_proj.bias": np.zeros(128, np.float32)}
    with pytest.raises(UnsupportedModel, match=r"1 tensors.*self_attn\.q_proj\.bias"):
        eager_from_folder(write_hf_folder(tmp_path / "x", model.config, model.weights | extra))


def test_tables_of_old_files_and_a_head_that_is_the_embedding_are_no_surprise(tmp_path: Path) -> None:
    model = recorded_model("qwen3")
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(16, np.float32),
        "lm_head.weight": model.weights["model.embed_tokens.weight"],
    }
    backend = eager_from_folder(write_hf_folder(tmp_path / "x", model.config, model.weights | extra))
    assert np.isfinite(logits_by_chunks(backend, model.tokens, (50,))).all()


@pytest.mark.parametrize("root", ["language_model.model.", "model.language_model."])
def test_the_language_model_of_one_that_also_sees_loads_by_itself(tmp_path: Path, root: str) -> None:
    model = recorded_model("gemma3")
    weights = {root + name.removeprefix("model."): value for name, value in model.weights.items()}
    weights["vision_tower.patch_embedding.weight"] = np.zeros((3, 3), np.float32)
    config = {"model_type": "gemma3", "text_config": model.config}
    backend = eager_from_folder(write_hf_folder(tmp_path / "x", config, weights))
    found = logits_by_chunks(backend, model.tokens, (50,))
    assert np.abs(found - model.logits[-1:]).max() < 1e-4 * np.abs(model.logits).max()


def test_a_layer_type_that_is_not_computed_is_refused(tmp_path: Path) -> None:
    model = recorded_model("qwen2, a window")
    config = model.config | {"layer_types": ["linear_attention"] * 3}
    path = write_hf_folder(tmp_path / "x", config, model.weights)
    with read_hf_folder(path) as folder, pytest.raises(UnsupportedModel, match="'linear_attention'"):
        read_config(folder)


def test_the_served_context_chooses_long_ropes_factors(tmp_path: Path) -> None:
    path = recorded_model("phi3, long").write(tmp_path / "x")
    with read_hf_folder(path) as folder:
        factors = [
            rope.frequency_factors if (rope := read_config(folder, context)[1].ropes[0]) else None
            for context in (None, 64, 25, 24)
        ]
    assert factors[0] == factors[1] == factors[2] == (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
    assert factors[3] == (1.0, 1.02, 1.1, 1.2, 1.3, 1.4)


@pytest.mark.parametrize(
    ("case", "override"),
    [
        ("llama, linear", RopeOverride(scaling=RopeScaling.LINEAR, factor=4.0)),
        ("llama 3", RopeOverride(scaling=RopeScaling.LLAMA3, factor=8.0, original_context=32)),
        ("qwen2", RopeOverride(scaling=RopeScaling.YARN, factor=4.0, original_context=32)),
    ],
)
def test_a_scaling_of_the_user_is_what_it_would_be_in_the_file(
    tmp_path: Path, case: str, override: RopeOverride
) -> None:
    model = recorded_model(case)
    stated = write_hf_folder(tmp_path / "stated", model.config, model.weights)
    plain = write_hf_folder(tmp_path / "plain", model.config | {"rope_scaling": None}, model.weights)
    with read_hf_folder(stated) as with_it, read_hf_folder(plain) as without:
        expected = read_config(with_it)[1].ropes[0]
        config = read_config(without, rope=override)[1]
        assert read_config(without)[1].ropes[0] != expected
    found = config.ropes[0]
    assert found is not None
    assert expected is not None
    assert inverse_frequencies(found) == inverse_frequencies(expected)
    assert found.attention_factor == expected.attention_factor
    original = override.original_context or model.config["max_position_embeddings"]
    assert config.context_length == override.factor * original


def test_layers_with_a_window_keep_their_scaling(tmp_path: Path) -> None:
    path = recorded_model("gemma3").write(tmp_path / "x")
    with read_hf_folder(path) as folder:
        stated = read_config(folder)[1]
        found = read_config(folder, rope=RopeOverride(scaling=RopeScaling.YARN, factor=2.0))[1]
    kept = [new == old for new, old in zip(found.ropes, stated.ropes, strict=True)]
    assert kept == [window is not None for window in stated.windows]
