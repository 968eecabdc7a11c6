"""Loading names what is missing, extra or misshapen, and reads a fused matrix in the right order."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.gguf import read_gguf
from appliance.model.config import ExpertConfig
from appliance.runtime import weights as weights_module
from appliance.runtime.checkpoint import halves_from_pairs, read_config
from appliance.runtime.weights import WeightLoader
from oracles.llama import LlamaShape
from oracles.tiny_model import CPU, HIDDEN, TinyModel, load_eager, tiny_model

MODEL = tiny_model(has_bias=True)


def with_tensors(path: Path, changes: dict[str, np.ndarray | None], model: TinyModel = MODEL) -> Path:
    kept = {name: array for name, array in (model.tensors | changes).items() if array is not None}
    return TinyModel(tensors=kept, shape=model.shape, metadata=model.metadata).write(path)


@pytest.mark.parametrize("name", sorted(name for name in MODEL.tensors if name != "blk.0.attn_q.bias"))
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadModelFile, match=f"the tensor '{name}' is missing"):
        load_eager(with_tensors(tmp_path / "x.gguf", {name: None}))


@pytest.mark.parametrize("name", sorted(name for name in MODEL.tensors if name != "token_embd.weight"))
def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path, name: str) -> None:
    array = MODEL.tensors[name]
    wrong = np.concatenate([array, array])
    path = with_tensors(tmp_path / "x.gguf", {name: wrong})
    with pytest.raises(BadModelFile) as caught:
        load_eager(path)
    assert f"'{name}'" in caught.value.message
    assert str(wrong.shape) in caught.value.message
    assert str(array.shape) in caught.value.message


def test_an_embedding_of_the_wrong_width_is_named(tmp_path: Path) -> None:
    path = with_tensors(tmp_path / "x.gguf", {"token_embd.weight": np.zeros((273, 32), dtype=np.float32)})
    with pytest.raises(BadModelFile, match=r"'token_embd.weight' has the shape \(273, 32\).*\(273, 64\)"):
        load_eager(path)


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.2.attn_q.weight", "output.bias"])
def test_an_extra_tensor_is_named_not_ignored(tmp_path: Path, name: str) -> None:
    path = with_tensors(tmp_path / "x.gguf", {name: np.ones(HIDDEN, dtype=np.float32)})
    with pytest.raises(
        UnsupportedModel, match=f"1 tensors that this architecture does not use, such as '{name}'"
    ):
        load_eager(path)


def test_a_bias_in_one_layer_only_is_refused(tmp_path: Path) -> None:
    path = with_tensors(tmp_path / "x.gguf", {"blk.0.attn_q.bias": None})
    with pytest.raises(UnsupportedModel, match="bias"):
        load_eager(path)


def test_frequency_factors_of_the_wrong_number_are_refused(tmp_path: Path) -> None:
    path = with_tensors(tmp_path / "x.gguf", {"rope_freqs.weight": np.ones(7, dtype=np.float32)})
    with pytest.raises(BadModelFile, match="7 RoPE frequency factors"):
        load_eager(path)


@pytest.mark.parametrize(
    "key",
    ["llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
     "llama.attention.head_count", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"],
)  # fmt: skip
def test_a_missing_metadata_key_is_named(tmp_path: Path, key: str) -> None:
    metadata = {k: v for k, v in MODEL.metadata.items() if k != key}
    path = TinyModel(tensors=MODEL.tensors, shape=MODEL.shape, metadata=metadata).write(tmp_path / "x.gguf")
    with read_gguf(path) as file, pytest.raises(BadModelFile, match=f"'{key}' is missing"):
        read_config(file)


def test_the_config_says_what_the_tensors_say(tmp_path: Path) -> None:
    plain, full = tiny_model(), tiny_model(has_bias=True, has_head=True, frequency_factors=(2.0,) * 8)
    for model, is_full in ((plain, False), (full, True)):
        with read_gguf(model.write(tmp_path / "x.gguf")) as file:
            _, config = read_config(file)
        assert config.vocab_size == 273
        assert config.ties_embeddings is not is_full
        assert config.has_qkv_bias is is_full
        assert config.ropes[1] is not None
        assert config.ropes[1].frequency_factors == ((2.0,) * 8 if is_full else None)


def test_tied_embeddings_are_held_once(tmp_path: Path) -> None:
    for model, is_same in ((tiny_model(), True), (tiny_model(has_head=True), False)):
        with read_gguf(model.write(tmp_path / "x.gguf")) as file:
            loaded = WeightLoader(file, dtype=torch.bfloat16, device=CPU).load(*read_config(file))
        assert (loaded.head.weight.data_ptr() == loaded.embedding.data_ptr()) is is_same
        assert loaded.embedding.dtype == loaded.layers[0].down.weight.dtype == torch.bfloat16
        assert loaded.final_norm.dtype == loaded.layers[0].attention_norm.dtype == torch.float32


def test_a_matrix_of_many_chunks_equals_one_of_a_single_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MODEL.write(tmp_path / "x.gguf", "Q8_0")
    loaded = []
    for chunk in (1 << 20, 7 * HIDDEN):
        monkeypatch.setattr(weights_module, "_CHUNK_ELEMENTS", chunk)
        with read_gguf(path) as file:
            loaded.append(WeightLoader(file, dtype=torch.float32, device=CPU).load(*read_config(file)))
    whole, pieces = (weights.layers[1] for weights in loaded)
    assert torch.equal(whole.qkv.weight, pieces.qkv.weight)
    assert torch.equal(whole.gate_up.weight, pieces.gate_up.weight)
    assert torch.equal(whole.down.weight, pieces.down.weight)


def test_fused_rows_stand_in_the_order_query_key_value_and_gate_up(tmp_path: Path) -> None:
    with read_gguf(MODEL.write(tmp_path / "x.gguf")) as file:
        layer = WeightLoader(file, dtype=torch.float32, device=CPU).load(*read_config(file)).layers[1]
    stored = {name: torch.from_numpy(array) for name, array in MODEL.tensors.items()}
    assert torch.equal(layer.qkv.weight[96:], stored["blk.1.attn_v.weight"])
    assert layer.qkv.bias is not None
    assert torch.equal(layer.qkv.bias[96:], stored["blk.1.attn_v.bias"])
    # Of head 1 of 4: row 16 + 2i of the file is its i-th, row 16 + 2i + 1 its 8 + i-th.
    assert torch.equal(layer.qkv.weight[16 + 3], stored["blk.1.attn_q.weight"][16 + 6])
    assert torch.equal(layer.qkv.bias[16 + 8 + 3], stored["blk.1.attn_q.bias"][16 + 7])
    assert torch.equal(layer.gate_up.weight[:96], stored["blk.1.ffn_gate.weight"])
    assert torch.equal(layer.gate_up.weight[96:], stored["blk.1.ffn_up.weight"])


def test_pairs_become_halves_and_what_does_not_turn_stays() -> None:
    assert halves_from_pairs(1, 6, 6).tolist() == [0, 2, 4, 1, 3, 5]
    assert halves_from_pairs(2, 6, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    assert sorted(halves_from_pairs(3, 16, 10).tolist()) == list(range(48))


def test_progress_ends_with_everything(tmp_path: Path) -> None:
    shares: list[float] = []
    model = tiny_model(shape=LlamaShape(num_layers=3))
    with read_gguf(model.write(tmp_path / "x.gguf")) as file:
        WeightLoader(file, dtype=torch.float32, device=CPU, progress=shares.append).load(*read_config(file))
    assert shares == [1 / 3, 2 / 3, 1.0]


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    with read_gguf(MODEL.write(tmp_path / "x.gguf")) as file:
        architecture, config = read_config(file)
        experts = ExpertConfig(num_experts=8, num_active=2, intermediate_size=96)
        with pytest.raises(BadModelFile, match=r"'blk\.0\.ffn_gate_inp\.weight' is missing"):
            WeightLoader(file, dtype=torch.float32, device=CPU).load(
                architecture, replace(config, experts=experts)
            )
