"""Operations on rows of tokens against their formulas in float64, at odd sizes and in every type."""

import numpy as np
import pytest
import torch

from kernels.ops import LinearWeight, Ops
from oracles import kernel_formulas as formulas
from oracles.tolerances import assert_close

SIZES = (1, 7, 63, 100)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_tokens = pytest.mark.parametrize("num_tokens", [1, 7, 63])


def random(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


@by_dtype
@by_tokens
def test_embed_picks_rows_of_the_table(ops: Ops, rng, num_tokens: int, dtype: torch.dtype) -> None:
    table = random(rng, 100, 7, dtype=dtype)
    token_ids = torch.from_numpy(rng.integers(0, 100, num_tokens))
    token_ids[0] = 99
    found = ops.embed(token_ids, table)
    assert found.dtype == dtype
    assert np.array_equal(wide(found), formulas.embed(token_ids.numpy(), wide(table)))


@by_dtype
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_in", "num_out"), [(1, 63), (7, 1), (63, 100), (100, 7)])
def test_linear_is_the_dense_product(
    ops: Ops, rng, num_in: int, num_out: int, has_bias: bool, dtype: torch.dtype
) -> None:
    weight = random(rng, num_out, num_in, dtype=dtype)
    bias = random(rng, num_out, dtype=dtype) if has_bias else None
    x = random(rng, 7, num_in, dtype=dtype)
    found = ops.linear(x, LinearWeight(weight=weight, bias=bias))
    assert found.dtype == dtype
    assert_close(found, formulas.linear(wide(x), wide(weight), None if bias is None else wide(bias)))


@by_dtype
def test_linear_takes_its_input_in_the_weights_type(ops: Ops, rng, dtype: torch.dtype) -> None:
    weight, x = random(rng, 7, 63, dtype=dtype), random(rng, 3, 63)
    found = ops.linear(x, LinearWeight(weight=weight))
    assert found.dtype == dtype
    assert_close(found, formulas.linear(wide(x.to(dtype)), wide(weight), None))


def test_linear_weight_counts_its_bytes_with_the_bias() -> None:
    weight = LinearWeight(weight=torch.zeros(3, 5, dtype=torch.bfloat16), bias=torch.zeros(3))
    assert weight.num_bytes == 2 * 15 + 4 * 3


@by_dtype
@pytest.mark.parametrize("hidden", SIZES)
def test_rms_norm_divides_by_the_root_of_the_mean_square(
    ops: Ops, rng, hidden: int, dtype: torch.dtype
) -> None:
    x, weight = 30 * random(rng, 7, hidden, dtype=dtype), random(rng, hidden)
    found = ops.rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    assert_close(found, formulas.rms_norm(wide(x), wide(weight), 1e-5))


def test_rms_norm_of_tiny_values_is_ruled_by_epsilon(ops: Ops, rng) -> None:
    x, weight = 1e-4 * random(rng, 3, 63), random(rng, 63)
    found = ops.rms_norm(x, weight, 1e-2)
    assert_close(found * 1e3, 1e3 * formulas.rms_norm(wide(x), wide(weight), 1e-2))
    assert not ops.rms_norm(torch.zeros(1, 63), weight, 1e-6).any()


def test_rms_norm_in_float16_does_not_overflow_inside(ops: Ops) -> None:
    x = torch.full((1, 100), 1000.0, dtype=torch.float16)  # 1000 squared is past float16's 65504
    assert_close(ops.rms_norm(x, torch.ones(100), 1e-6), np.ones((1, 100)))


@by_dtype
@pytest.mark.parametrize("hidden", SIZES)
def test_add_rms_norm_sums_in_the_residuals_type_and_norms_in_its_inputs(
    ops: Ops, rng, hidden: int, dtype: torch.dtype
) -> None:
    x, residual = random(rng, 7, hidden, dtype=dtype), 30 * random(rng, 7, hidden)
    weight = random(rng, hidden)
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert normed.dtype == dtype
    assert total.dtype == torch.float32
    assert_close(total, wide(x) + wide(residual))
    assert_close(normed, formulas.rms_norm(wide(x) + wide(residual), wide(weight), 1e-5))


def test_select_rows_picks_rows_in_the_order_asked_for(ops: Ops, rng) -> None:
    x = random(rng, 7, 63, dtype=torch.bfloat16)
    found = ops.select_rows(x, torch.tensor([6, 0, 6]))
    assert np.array_equal(wide(found), wide(x)[[6, 0, 6]])


@by_dtype
@by_tokens
@pytest.mark.parametrize(("rotary", "head_size"), [(2, 2), (16, 16), (8, 16), (2, 7)])
def test_rope_turns_the_first_half_with_the_second(
    ops: Ops, rng, num_tokens: int, rotary: int, head_size: int, dtype: torch.dtype
) -> None:
    x = random(rng, num_tokens, 3, head_size, dtype=dtype)
    angles = torch.from_numpy(rng.uniform(0, 600, (num_tokens, rotary // 2)))
    cos, sin = angles.cos().float(), angles.sin().float()
    expected = formulas.rope(wide(x), wide(cos), wide(sin))
    kept = x[..., rotary:].clone()
    found = ops.rope(x, cos, sin)
    assert found.dtype == dtype
    assert torch.equal(found[..., rotary:], kept)
    assert_close(found, expected)


@by_dtype
@pytest.mark.parametrize("inner", SIZES)
@pytest.mark.parametrize("name", ["gated_silu", "gated_gelu"])
def test_gates_multiply_the_activated_half_with_the_other(
    ops: Ops, rng, name: str, inner: int, dtype: torch.dtype
) -> None:
    gate_up = 3 * random(rng, 7, 2 * inner, dtype=dtype)
    found = getattr(ops, name)(gate_up)
    assert found.dtype == dtype
    assert_close(found, getattr(formulas, name)(wide(gate_up)))


@pytest.mark.parametrize("name", ["gated_silu", "gated_gelu"])
def test_gates_survive_large_values_of_either_sign(ops: Ops, name: str) -> None:
    gate_up = torch.tensor([[-500.0, 500.0, 0.0, 2.0, 2.0, 2.0]])
    assert_close(getattr(ops, name)(gate_up), np.array([[0.0, 1000.0, 0.0]]))
