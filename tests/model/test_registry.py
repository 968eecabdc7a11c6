"""Unknown architectures and scalings are refused by name, before a tensor is read."""

from pathlib import Path

import pytest
import torch

from appliance.errors import UnsupportedModel
from appliance.model.config import RopeConfig, RopeScaling
from appliance.model.registry import find_architecture
from appliance.model.rope_frequencies import inverse_frequencies
from appliance.model.rope_tables import rope_tables
from oracles.tiny_model import TinyModel, load_eager, tiny_model


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mamba' is not supported yet; this version runs .*llama"):
        find_architecture("mamba")
    assert find_architecture("llama").name == "llama"


@pytest.mark.parametrize("scaling", ["llama3", "warp"])
def test_a_scaling_that_is_not_computed_is_refused_not_ignored(tmp_path: Path, scaling: str) -> None:
    """GGUF has Llama 3's as a tensor; as a word it lacks its bounds."""
    model = tiny_model()
    metadata = model.metadata | {"llama.rope.scaling.type": scaling, "llama.rope.scaling.factor": 2.0}
    path = TinyModel(tensors=model.tensors, shape=model.shape, metadata=metadata).write(tmp_path / "x.gguf")
    with pytest.raises(UnsupportedModel, match=f"'{scaling}' is unknown; known are .*yarn"):
        load_eager(path)


def test_frequencies_fall_from_one_by_powers_of_theta() -> None:
    frequencies = inverse_frequencies(RopeConfig(theta=10_000.0, rotary_size=8))
    assert frequencies == pytest.approx((1.0, 0.1, 0.01, 0.001))
    halved = inverse_frequencies(
        RopeConfig(theta=10_000.0, rotary_size=8, scaling=RopeScaling.LINEAR, scaling_factor=2.0)
    )
    assert halved == pytest.approx([f / 2 for f in frequencies])


def test_tables_carry_the_attention_factor() -> None:
    cos, sin = rope_tables(torch.tensor([0, 3]), torch.tensor([1.0, 0.5]), 2.0)
    assert cos.shape == sin.shape == (2, 2)
    assert cos[0].tolist() == [2.0, 2.0]
    assert torch.allclose(sin[1], 2 * torch.tensor([3.0, 1.5]).sin())
