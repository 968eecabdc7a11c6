"""How a model's matrices are held: their errors on real inputs, scales, and how a budget is spent."""

from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.eval.calibration import MAX_WINDOWS, WINDOW, MatrixReport, calibrate, choose_kept, cut
from appliance.eval.linear_errors import LinearError, rounded, weight_error
from appliance.eval.scale_search import find_scales
from appliance.formats.gguf import read_gguf
from appliance.model.config import ModelConfig
from appliance.model.decoder import DecoderWeights
from appliance.precision_map import EMPTY_MAP, PrecisionMap
from appliance.runtime.checkpoint import read_config
from appliance.runtime.weights import WeightLoader
from kernels.int8_weight import pack_int8, unpack_int8
from oracles.tiny_model import CPU, TinyModel, tiny_model

PROMPTS = [np.random.default_rng(seed).integers(0, 273, 30).tolist() for seed in range(3)]
NO_ERROR = LinearError(relative=0.0, cosine=1.0, effect=0.0)


def matrix(name: str, effect: float, num_elements: int = 1000) -> MatrixReport:
    return MatrixReport(
        name=name,
        num_bytes=2 * num_elements,
        int8_bytes=num_elements,
        reach=1.0,
        error=LinearError(relative=0.0, cosine=1.0, effect=effect),
    )


def load(
    model: TinyModel, folder: Path, precision_map: PrecisionMap = EMPTY_MAP
) -> tuple[ModelConfig, DecoderWeights]:
    with read_gguf(model.write(folder / "tiny.gguf")) as file:
        architecture, config = read_config(file)
        loader = WeightLoader(file, dtype=torch.float32, device=CPU, precision_map=precision_map)
        return config, loader.load(architecture, config)


def test_errors_are_those_of_the_products() -> None:
    torch.manual_seed(0)
    x, rows, gradient = torch.randn(9, 33), torch.randn(17, 33), torch.randn(9, 17)
    exact, found = x @ rows.T, x @ unpack_int8(pack_int8(rows)).T
    error = weight_error(x, rows, gradient)
    assert error.relative == pytest.approx(float((found - exact).norm() / exact.norm()), rel=1e-4)
    cosine = torch.nn.functional.cosine_similarity(found.flatten(), exact.flatten(), dim=0)
    assert error.cosine == pytest.approx(float(cosine), abs=1e-6)
    moved = [float(g @ e) for g, e in zip(gradient, found - exact, strict=True)]
    assert error.effect == pytest.approx(sum(m * m for m in moved) / 9 / 2, rel=1e-4)


def test_an_effect_foretells_the_divergence_that_rounding_one_matrix_brings(tmp_path: Path) -> None:
    from dataclasses import replace

    from appliance.eval.divergence import Divergence
    from appliance.eval.logit_reader import LogitReader
    from appliance.runtime.backend import EagerBackend, eager_kv_layout
    from kernels.ops import LinearWeight
    from kernels.tables import reference_ops

    config, weights = load(tiny_model(), tmp_path)
    prompts = [np.random.default_rng(seed).integers(0, 273, 100).tolist() for seed in range(12)]
    result = calibrate(config, weights, prompts, size_share=1.0, is_scaling=False)
    layer = weights.layers[1]
    assert isinstance(layer.output, LinearWeight)
    spoilt = replace(layer, output=LinearWeight(weight=rounded(layer.output.weight)))
    divergence = Divergence()
    with torch.inference_mode():
        backends = [
            EagerBackend(config, each, reference_ops(), eager_kv_layout(config, torch.float32))
            for each in (replace(weights, layers=(weights.layers[0], spoilt)), weights)
        ]
        for prompt in prompts:
            for found, exact in zip(*(LogitReader(each).read(prompt) for each in backends), strict=True):
                divergence.add(found, exact, torch.zeros(len(found), dtype=torch.int64))
    foretold = next(m.effect for m in result.matrices if m.name == "1.output")
    assert foretold == pytest.approx(divergence.summary().mean_kl, rel=0.5)


def test_scales_are_found_where_few_channels_are_large() -> None:
    torch.manual_seed(1)
    x, rows = torch.randn(64, 48), torch.randn(31, 48)
    x[:, 7] *= 60
    scales = find_scales(x, rows)
    assert scales is not None
    assert scales.argmax() == 7
    lost = [float((x @ (rounded(rows, s) - rows).T).norm()) for s in (None, scales)]
    assert lost[1] < 0.5 * lost[0]


def test_heads_that_share_values_share_scales() -> None:
    torch.manual_seed(2)
    x = torch.randn(64, 2 * 3 * 8)
    x[:, 5] *= 50
    scales = find_scales(x, torch.randn(31, 48), group=(2, 3, 8))
    assert scales is not None
    by_group = scales.view(2, 3, 8)
    assert torch.equal(by_group[:, 0], by_group[:, 1])
    assert torch.equal(by_group[:, 0], by_group[:, 2])


def test_long_texts_are_thinned_out_evenly() -> None:
    windows = cut([list(range(WINDOW * 3 * MAX_WINDOWS)), [1]])
    assert len(windows) == MAX_WINDOWS
    assert [window[0] for window in windows[:3]] == [0, 3 * WINDOW, 6 * WINDOW]


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
    config, weights = load(model, tmp_path)
    result = calibrate(config, weights, PROMPTS, size_share=0.7)
    assert len(result.matrices) == 8
    assert max(result.matrices, key=lambda m: m.effect).name == "1.down"
    assert result.kept[0] == "1.down"
    assert 0.5 < result.size_share <= 0.7
    assert all(m.effect > 0 for m in result.matrices)


def test_a_model_with_an_outlying_channel_gets_scales_that_lower_the_effect(tmp_path: Path) -> None:
    model = tiny_model()
    model.tensors["blk.0.ffn_norm.weight"][11] = 40.0
    config, weights = load(model, tmp_path)
    result = calibrate(config, weights, PROMPTS, size_share=0.51)
    found = next(m for m in result.matrices if m.name == "0.gate_up")
    assert found.scaled is not None
    assert found.scaled.relative < 0.7 * found.error.relative
    assert result.remaining_effect < result.unscaled_effect
    assert "0.gate_up" in result.precision_map.scales
