"""Which matrices stay in 16 bits: their errors on real activations, and how a budget is spent."""

from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.eval.calibration import MatrixReport, calibrate, choose_kept
from appliance.eval.linear_errors import ErrorSums, WatchedLinear
from appliance.formats.gguf import read_gguf
from appliance.runtime.checkpoint import read_config
from appliance.runtime.weights import WeightLoader
from kernels.int8_weight import pack_int8, unpack_int8
from kernels.ops import LinearWeight
from oracles.tiny_model import CPU, tiny_model

PROMPTS = [np.random.default_rng(seed).integers(0, 273, 30).tolist() for seed in range(3)]


def matrix(name: str, effect: float, num_elements: int = 1000) -> MatrixReport:
    return MatrixReport(
        name=name,
        num_bytes=2 * num_elements,
        int8_bytes=num_elements,
        errors=ErrorSums(),
        effect=effect,
    )


def test_errors_are_those_of_the_products() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(9, 33), LinearWeight(weight=torch.randn(17, 33))
    watched = WatchedLinear({id(weight): "0.down"})
    watched(x[:4], weight)
    product = watched(x[4:], weight)
    exact = x @ weight.weight.T
    found = x @ unpack_int8(pack_int8(weight.weight)).T
    sums = watched.sums["0.down"]
    assert torch.equal(product, x[4:] @ weight.weight.T)
    assert sums.relative == pytest.approx(float((found - exact).norm() / exact.norm()), rel=1e-4)
    cosine = torch.nn.functional.cosine_similarity(found.flatten(), exact.flatten(), dim=0)
    assert sums.cosine == pytest.approx(float(cosine), abs=1e-6)
    assert sums.reach == pytest.approx(float(x.abs().max() / x.square().mean().sqrt()), rel=1e-5)


def test_a_budget_goes_to_the_most_effect_per_byte() -> None:
    matrices = [matrix("0.qkv", 3.0, 3000), matrix("0.down", 2.0), matrix("1.down", 0.5)]
    # INT8 alone takes half; 60% of 10,000 bytes leaves 1,000 to spend.
    assert choose_kept(matrices, size_share=0.6) == ("0.down",)
    assert choose_kept(matrices, size_share=1.0) == ("0.down", "0.qkv", "1.down")
    assert choose_kept(matrices, size_share=0.5) == ()


def test_what_does_not_fit_is_passed_over_for_what_does() -> None:
    matrices = [matrix("0.qkv", 9.0, 2000), matrix("0.down", 1.0)]
    assert choose_kept(matrices, size_share=0.7) == ("0.down",)


def test_an_error_budget_keeps_no_more_than_it_must() -> None:
    matrices = [matrix("0.qkv", 3.0), matrix("0.down", 2.0), matrix("1.down", 0.5)]
    assert choose_kept(matrices, size_share=1.0, error=2.5) == ("0.qkv",)


def test_the_matrix_that_int8_spoils_is_found(tmp_path: Path) -> None:
    model = tiny_model()
    # One outlier in each row takes the scale from all other weights of it.
    model.tensors["blk.1.ffn_down.weight"][:, 5] = 30.0
    with read_gguf(model.write(tmp_path / "tiny.gguf")) as file:
        architecture, config = read_config(file)
        weights = WeightLoader(file, dtype=torch.float32, device=CPU).load(architecture, config)
    result = calibrate(config, weights, PROMPTS, size_share=0.7)
    assert len(result.matrices) == 8
    assert max(result.matrices, key=lambda m: m.effect).name == "1.down"
    assert result.kept[0] == "1.down"
    assert 0.5 < result.size_share <= 0.7
    assert all(m.effect > 0 for m in result.matrices)
