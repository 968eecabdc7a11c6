import json
from pathlib import Path

import numpy as np
import pytest

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.dequantize import dequantize
from appliance.formats.hf_folder import is_model_folder, read_hf_folder
from formats.safetensors_builder import safetensors_bytes, write_hf_folder

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"factor": 8, "rope_type": "llama3"},
    "tie_word_embeddings": True,
    "sliding_window": None,
}
TENSORS = {f"model.layers.{i}.w": np.full((2, 3), i, np.float32) for i in range(5)}
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_folder_opens_as_one_set_of_tensors(tmp_path: Path, num_shards: int) -> None:
    path = write_hf_folder(tmp_path / "m", CONFIG, TENSORS, num_shards=num_shards)
    with read_hf_folder(path) as folder:
        assert set(folder.tensors) == set(TENSORS)
        for name, values in TENSORS.items():
            assert np.array_equal(dequantize(folder, name), values)
        kept = folder.raw("model.layers.4.w")
        with pytest.raises(BadModelFile, match=r"'m': the tensor 'x' is missing"):
            folder.raw("x")
    assert np.array_equal(kept.view(np.float32), TENSORS["model.layers.4.w"])
    with pytest.raises(ValueError, match="closed"):
        folder.raw("model.layers.4.w")


def test_config_values_are_read_with_their_types(tmp_path: Path) -> None:
    folder = read_hf_folder(write_hf_folder(tmp_path / "m", CONFIG, TENSORS))
    assert folder.metadata_int("hidden_size") == 64
    assert folder.metadata_float("rms_norm_eps") == 1e-5
    assert folder.metadata_float("rope_scaling.factor") == 8.0
    assert folder.metadata_str("rope_scaling.rope_type") == "llama3"
    assert folder.metadata_bool("tie_word_embeddings") is True
    assert folder.metadata_int("sliding_window", 7) == 7
    assert folder.metadata_int("rope_scaling.x.y", 7) == 7
    assert folder.find("architectures") == ["LlamaForCausalLM"]
    with pytest.raises(BadModelFile, match=r"config\.json has no 'num_layers'"):
        folder.metadata_int("num_layers")
    with pytest.raises(BadModelFile, match=r"'rms_norm_eps' of config\.json is 1e-05 and must be an integer"):
        folder.metadata_int("rms_norm_eps")
    with pytest.raises(BadModelFile, match="must be an integer"):
        folder.metadata_int("tie_word_embeddings")
    with pytest.raises(BadModelFile, match="must be a text"):
        folder.metadata_str("hidden_size")
    with pytest.raises(BadModelFile, match="must be a boolean"):
        folder.metadata_bool("hidden_size")


def test_a_generation_config_is_read_where_there_is_one(tmp_path: Path) -> None:
    others = {"generation_config.json": {"eos_token_id": [1, 2]}}
    assert read_hf_folder(write_hf_folder(tmp_path / "a", CONFIG, TENSORS)).generation_config == {}
    folder = read_hf_folder(write_hf_folder(tmp_path / "b", CONFIG, TENSORS, others=others))
    assert folder.generation_config["eos_token_id"] == [1, 2]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_a_pickle_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(UnsupportedModel, match=f"'{name}' is a PyTorch pickle.*any program.*safetensors"):
        read_hf_folder(tmp_path)


def test_a_folder_without_weights_or_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match=r"holds no config\.json"):
        read_hf_folder(tmp_path)
    assert not is_model_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert is_model_folder(tmp_path)
    with pytest.raises(BadModelFile, match="neither"):
        read_hf_folder(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", "\xff", "{" * 5000, '{"a": 1, "a": 2}'])
def test_a_broken_config_is_refused_by_name(tmp_path: Path, text: str) -> None:
    write_hf_folder(tmp_path, CONFIG, TENSORS)
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadModelFile, match=r"config\.json"):
        read_hf_folder(tmp_path)


def rewrite_index(path: Path, **changes: object) -> None:
    index = json.loads((path / INDEX).read_text())["weight_map"] | changes
    kept = {name: file for name, file in index.items() if file is not None}
    (path / INDEX).write_text(json.dumps({"weight_map": kept}))


@pytest.mark.parametrize("file", ["../model.safetensors", "a/b.safetensors", "c\\d.safetensors", "x.bin", 7])
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, file: object) -> None:
    path = write_hf_folder(tmp_path / "m", CONFIG, TENSORS, num_shards=2)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"w": np.ones(1, np.float32)}))
    rewrite_index(path, w=file)
    with pytest.raises(BadModelFile, match="which is no file beside it"):
        read_hf_folder(path)


def test_an_index_and_its_shards_must_agree_by_name(tmp_path: Path) -> None:
    path = write_hf_folder(tmp_path / "m", CONFIG, TENSORS, num_shards=2)
    rewrite_index(path, extra="model-00001-of-00002.safetensors")
    with pytest.raises(BadModelFile, match=r"the tensor 'extra' in model-00001.*where it is missing"):
        read_hf_folder(path)
    rewrite_index(path, **{"extra": None, "model.layers.0.w": None})
    with pytest.raises(BadModelFile, match=r"holds the tensor 'model\.layers\.0\.w'"):
        read_hf_folder(path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = write_hf_folder(tmp_path / "m", CONFIG, TENSORS, num_shards=2)
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BadModelFile, match=r"names model-00002-of-00002\.safetensors, which is not in"):
        read_hf_folder(path)
