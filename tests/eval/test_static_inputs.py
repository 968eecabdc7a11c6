"""One scale for all tokens' inputs: where it wins, where it loses, and what calibration makes of that."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.commands.calibrate import told
from appliance.eval.calibration import Calibration, calibrate
from appliance.eval.static_inputs import SeenInputs, StaticInputs, find_static, stepped
from appliance.formats.gguf import read_gguf
from appliance.precision_map import read_map, write_map
from appliance.runtime.checkpoint import read_config
from appliance.runtime.weights import WeightLoader
from oracles.tiny_model import CPU, TinyModel, tiny_model

SIZE, IGNORED = 256, 7
PROMPTS = [np.random.default_rng(seed).integers(0, 273, 30).tolist() for seed in range(3)]


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows() -> torch.Tensor:
    """A matrix that hardly heeds one channel."""
    weights = draw(1, 40, SIZE)
    weights[:, IGNORED] /= 1000
    return weights


def static_of(x: torch.Tensor) -> StaticInputs:
    part = SeenInputs(x=x, rows=rows(), gradient=draw(2, len(x), 40), largest=float(x.abs().max()), share=1.0)
    static = find_static([part])
    assert static is not None
    return static


def tokens_of_many_sizes() -> torch.Tensor:
    return draw(3, 256, SIZE) * torch.logspace(-1, 1, 256)[:, None]


def tokens_of_one_largest_value() -> torch.Tensor:
    x = draw(4, 256, SIZE).clamp(-2, 2)
    x[:, 3] = 2
    return x


def tokens_with_a_large_value_that_is_ignored() -> torch.Tensor:
    x = draw(5, 256, SIZE)
    x[:, IGNORED] = 40 * x[:, IGNORED].sign()
    return x


def test_one_scale_loses_where_tokens_differ_in_size() -> None:
    static = static_of(tokens_of_many_sizes())
    assert not static.wins
    assert static.gain < 0.8


def test_one_scale_is_every_tokens_own_where_all_have_one_largest_value() -> None:
    static = static_of(tokens_of_one_largest_value())
    assert static.wins
    assert static.gain == pytest.approx(1.0, rel=1e-6)
    assert static.scale == pytest.approx(2 / 127)


def test_one_scale_wins_where_it_can_cut_off_what_the_matrix_ignores() -> None:
    static = static_of(tokens_with_a_large_value_that_is_ignored())
    assert static.wins
    assert static.gain > 3
    assert static.scale < 20 / 127


def test_errors_are_those_of_the_rows_that_did_not_choose() -> None:
    x = tokens_of_many_sizes()
    static, judged = static_of(x), x[1::2]
    for error, scale in ((static.at_once, static.scale), (static.by_token, None)):
        exact, given = judged @ rows().T, stepped(judged, scale) @ rows().T
        assert error.relative == pytest.approx(float((given - exact).norm() / exact.norm()), rel=1e-3)


def test_matrices_that_share_a_name_share_a_scale() -> None:
    parts = [
        SeenInputs(x=x, rows=rows(), gradient=draw(2, len(x), 40), largest=float(x.abs().max()), share=0.5)
        for x in (tokens_of_one_largest_value(), 10 * tokens_of_one_largest_value())
    ]
    together = find_static(parts)
    assert together is not None
    assert together.scale > 10 / 127
    assert not together.wins


def test_too_few_tokens_say_nothing() -> None:
    assert find_static([]) is None
    x = draw(1, 1, SIZE)
    part = SeenInputs(x=x, rows=rows(), gradient=draw(2, 1, 40), largest=1.0, share=1.0)
    assert find_static([part]) is None
    assert find_static([replace(part, x=torch.zeros(8, SIZE), gradient=draw(2, 8, 40), largest=0.0)]) is None


def model_with_an_ignored_channel() -> TinyModel:
    """The first feed-forward's inputs have one large channel, whose columns are nearly zero."""
    model = tiny_model()
    model.tensors["blk.0.ffn_norm.weight"][11] = 200.0
    for name in ("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"):
        model.tensors[name][:, 11] *= 1e-4
    return model


def calibrated(model: TinyModel, folder: Path) -> Calibration:
    with read_gguf(model.write(folder / "tiny.gguf")) as file:
        architecture, config = read_config(file)
        weights = WeightLoader(file, dtype=torch.float32, device=CPU).load(architecture, config)
    return calibrate(config, weights, PROMPTS, size_share=0.51, is_scaling=False)


def test_calibration_writes_the_scales_that_win_and_no_others(tmp_path: Path) -> None:
    result = calibrated(model_with_an_ignored_channel(), tmp_path)
    assert "0.gate_up" in result.static_wins
    losers = {m.name for m in result.matrices} - result.static_wins.keys() - set(result.kept)
    assert losers
    assert result.static_effect < result.input_effect
    file = tmp_path / "tiny.gguf"
    write_map(file, result.precision_map)
    found = read_map(file)
    assert found is not None
    assert found.input_scales == {name: s.scale for name, s in result.static_wins.items()}
    assert "by one scale; where inputs are INT8" in told(result, num_rows=None)[-1]


def test_calibration_says_so_where_none_wins(tmp_path: Path) -> None:
    result = calibrated(tiny_model(), tmp_path)
    lost = [
        replace(m, static=replace(m.static, at_once=replace(m.static.at_once, relative=9.0, effect=9.0)))
        for m in result.matrices
        if m.static is not None
    ]
    none_wins = replace(result, matrices=tuple(lost))
    assert none_wins.precision_map.input_scales == {}
    assert none_wins.static_effect == none_wins.input_effect < none_wins.all_static_effect
    assert "none is written" in told(none_wins, num_rows=None)[-1]
