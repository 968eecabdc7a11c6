"""ModelConfig refuses shapes that contradict themselves, and derives the rest."""

import pytest

from appliance.errors import BadModelFile
from appliance.model.config import ModelConfig, RopeConfig

ROPE = RopeConfig(theta=10_000.0, rotary_size=16)


def make_config(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "architecture": "llama",
        "num_layers": 3,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_size": 16,
        "vocab_size": 273,
        "context_length": 512,
        "norm_eps": 1e-5,
        "ropes": (ROPE,) * 3,
    }
    return ModelConfig(**(values | changes))


@pytest.mark.parametrize(
    "name",
    ["num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_size",
     "vocab_size", "context_length", "norm_eps"],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, -1])
def test_every_size_must_be_above_zero(name: str, value: int) -> None:
    with pytest.raises(BadModelFile, match=f"{name} is {value}; it must be above 0"):
        make_config(**{name: value})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_heads": 7}, "num_heads is not a multiple of num_kv_heads"),
        ({"ropes": (ROPE,) * 2}, "not one rope per layer"),
        ({"windows": (None, 7)}, "not one window per layer"),
        (
            {"ropes": (ROPE, RopeConfig(theta=1e4, rotary_size=18), ROPE)},
            "rotary_size 18 does not fit",
        ),
        ({"ropes": (RopeConfig(theta=1e4, rotary_size=7),) * 3}, "rotary_size 7 does not fit"),
        ({"ropes": (RopeConfig(theta=1e4, rotary_size=0),) * 3}, "rotary_size 0 does not fit"),
        ({"ropes": (RopeConfig(theta=0.0, rotary_size=8),) * 3}, r"theta is 0\.0"),
        (
            {"ropes": (RopeConfig(theta=1e4, rotary_size=8, scaling_factor=0.0),) * 3},
            r"factor is 0\.0",
        ),
        (
            {"ropes": (RopeConfig(theta=1e4, rotary_size=8, frequency_factors=(1.0,) * 3),) * 3},
            "3 RoPE frequency factors and a rotary_size of 8 needs 4",
        ),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(BadModelFile, match=problem):
        make_config(**changes)


def test_layers_without_rope_and_with_windows_are_allowed() -> None:
    config = make_config(ropes=(ROPE, None, ROPE), windows=(None, 7, 100))
    assert [config.window(layer) for layer in range(3)] == [None, 7, 100]
    assert [make_config().window(layer) for layer in range(3)] == [None] * 3


def test_groups_and_scale_follow_from_the_sizes() -> None:
    assert make_config().num_groups == 3
    assert make_config().query_scale == 0.25
    assert make_config(attention_scale=0.1).query_scale == 0.1
