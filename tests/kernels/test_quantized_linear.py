"""Products with INT8 and 4-bit matrices, and the matrices themselves, against formulas in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.int4_weight import Int4Weight, pack_int4, quantize_int4, unpack_int4
from kernels.int8_weight import Int8Weight, pack_int8, unpack_int8
from kernels.ops import MOST_SKINNY_TOKENS, Ops
from oracles import kernel_formulas as formulas
from oracles.tolerances import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def int4_by_hand(weight: Int4Weight) -> np.ndarray:
    """Every element from its own 4 bits, scale and minimum."""
    num_outputs = weight.packed.shape[1]
    out = np.zeros((num_outputs, weight.num_inputs))
    for o, i in np.ndindex(*out.shape):
        byte = int(weight.packed[i // 64, o, i % 32])
        value = byte >> 4 if i // 32 % 2 else byte & 15
        scale = float(weight.scales[i // 32, o])
        minimum = -8 * scale if weight.minima is None else float(weight.minima[i // 32, o])
        out[o, i] = value * scale + minimum
    return out


@pytest.mark.parametrize(("num_out", "num_in"), [(1, 1), (7, 63), (63, 100)])
def test_int8_rows_are_off_by_at_most_half_a_step(rng, num_out: int, num_in: int) -> None:
    rows = random(rng, num_out, num_in) * 10 ** random(rng, num_out, 1)
    weight = pack_int8(rows)
    assert weight.weight.dtype == torch.int8
    assert weight.weight.abs().max() == 127
    half_steps = rows.abs().amax(1) / 127 / 2
    assert ((unpack_int8(weight) - rows).abs().amax(1) <= half_steps * (1 + 1e-5)).all()


def test_an_int8_row_of_zeros_stays_zeros() -> None:
    weight = pack_int8(torch.zeros(2, 5))
    assert not unpack_int8(weight).any()
    assert not weight.scales.any()


@pytest.mark.parametrize("has_minima", [False, True])
@pytest.mark.parametrize("num_in", [32, 64, 96, 320])
def test_packed_4_bit_values_come_back_as_they_were(rng, num_in: int, has_minima: bool) -> None:
    values = torch.from_numpy(rng.integers(0, 16, (7, num_in)))
    scales, minima = random(rng, 7, num_in // 32).half(), random(rng, 7, num_in // 32).half()
    weight = pack_int4(values, scales, minima if has_minima else None)
    each_scale, each_minimum = (x.float().repeat_interleave(32, dim=1) for x in (scales, minima))
    expected = values * each_scale + each_minimum if has_minima else (values - 8) * each_scale
    assert torch.equal(unpack_int4(weight), expected.float())
    assert np.allclose(int4_by_hand(weight), wide(expected), rtol=1e-6)


def test_quantized_4_bit_groups_are_off_by_about_half_a_step(rng) -> None:
    rows = random(rng, 7, 96) * 10 ** random(rng, 7, 1) + random(rng, 7, 1)
    groups = rows.view(7, 3, 32)
    steps = (groups.amax(-1) - groups.amin(-1)) / 15
    off = (unpack_int4(quantize_int4(rows)).view(7, 3, 32) - groups).abs().amax(-1)
    # Half a step, and what the minimum and 15 steps lose in 16 bits.
    assert (off <= steps * 0.5 + groups.abs().amax(-1) * 2**-9).all()


def test_4_bit_groups_of_one_value_are_exact_to_16_bits() -> None:
    rows = torch.full((2, 64), 0.3)
    assert torch.equal(unpack_int4(quantize_int4(rows)), rows.half().float())


def test_quantized_weights_count_all_their_bytes() -> None:
    assert pack_int8(torch.ones(3, 5), bias=torch.zeros(3)).num_bytes == 3 * 5 + 4 * 3 + 4 * 3
    symmetric = pack_int4(torch.zeros(3, 64), torch.ones(3, 2))
    assert symmetric.num_bytes == 3 * 32 + 2 * 3 * 2
    assert quantize_int4(torch.ones(3, 64)).num_bytes == 3 * 32 + 2 * 2 * 3 * 2


@by_dtype
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 7, 40])
def test_linear_int8_is_the_product_with_the_dequantized_matrix(
    ops: Ops, rng, num_tokens: int, has_bias: bool, dtype: torch.dtype
) -> None:
    bias = random(rng, 7, dtype=dtype) if has_bias else None
    weight = pack_int8(random(rng, 7, 63), bias=bias, activation_dtype=dtype)
    x = random(rng, num_tokens, 63)
    rows = wide(weight.weight) * wide(weight.scales)[:, None]
    expected = formulas.linear(wide(x.to(dtype)), rows, None if bias is None else wide(bias))
    for found in (ops.linear_int8(x, weight), ops.linear(x, weight)):
        assert found.dtype == dtype
        assert_close(found, expected)


@by_dtype
@pytest.mark.parametrize("has_minima", [False, True])
@pytest.mark.parametrize("num_in", [32, 64, 96])
def test_linear_int4_is_the_product_with_the_dequantized_matrix(
    ops: Ops, rng, num_in: int, has_minima: bool, dtype: torch.dtype
) -> None:
    values = torch.from_numpy(rng.integers(0, 16, (7, num_in)))
    scales, minima = random(rng, 7, num_in // 32), random(rng, 7, num_in // 32)
    bias = random(rng, 7, dtype=dtype)
    weight = pack_int4(values, scales, minima if has_minima else None, bias=bias, activation_dtype=dtype)
    x = random(rng, 3, num_in, dtype=dtype)
    expected = formulas.linear(wide(x), int4_by_hand(weight), wide(bias))
    for found in (ops.linear_int4(x, weight), ops.linear(x, weight)):
        assert found.dtype == dtype
        assert_close(found, expected)


@by_dtype
def test_tokens_are_quantized_each_by_its_largest_value(ops: Ops, rng, dtype: torch.dtype) -> None:
    x = random(rng, 7, 63, dtype=dtype)
    x[2] = 0
    steps, scales = ops.quantize_tokens(x)
    assert steps.dtype == torch.int8
    for t in range(7):
        expected, scale = formulas.quantize_head(wide(x[t]))
        assert float(scales[t]) == pytest.approx(scale, rel=1e-6)
        assert np.abs(wide(steps[t]) - expected).max() <= 1
    assert not steps[2].any()


@by_dtype
def test_tokens_are_quantized_by_one_scale_where_one_is_given(ops: Ops, rng, dtype: torch.dtype) -> None:
    x = random(rng, 7, 63, dtype=dtype)
    x[3, 5] = 90
    scale = 1 / 64
    steps, scales = ops.quantize_tokens(x, scale)
    assert steps.dtype == torch.int8
    assert torch.equal(scales, torch.full((7,), scale))
    expected = np.clip(np.round(wide(x) / scale), -127, 127)
    assert np.array_equal(wide(steps), expected)
    assert int(steps[3, 5]) == 127


@by_dtype
def test_integer_products_are_summed_exactly(ops: Ops, rng, dtype: torch.dtype) -> None:
    weight = pack_int8(random(rng, 7, 300), bias=random(rng, 7), activation_dtype=dtype)
    steps = torch.from_numpy(rng.integers(-127, 128, (5, 300))).to(torch.int8)
    scales = random(rng, 5).abs() / 100
    found = ops.linear_int8_tokens(steps, scales, weight)
    sums = wide(steps) @ wide(weight.weight).T
    expected = sums * wide(scales)[:, None] * wide(weight.scales) + wide(weight.bias)
    assert found.dtype == dtype
    assert_close(found, expected)


def test_many_tokens_are_quantized_where_the_weight_takes_that(ops: Ops, rng) -> None:
    rows, x = random(rng, 7, 63), random(rng, MOST_SKINNY_TOKENS + 1, 63)
    exact, fast = (
        pack_int8(rows, activation_dtype=torch.float32, takes_int8_tokens=takes) for takes in (False, True)
    )
    assert torch.equal(ops.linear(x, exact), ops.linear_int8(x, exact))
    assert torch.equal(ops.linear(x, fast), ops.linear_int8_tokens(*ops.quantize_tokens(x), fast))
    assert torch.equal(ops.linear(x[:-1], fast), ops.linear_int8(x[:-1], fast))
    assert isinstance(fast, Int8Weight)
    at_once = replace(fast, input_scale=0.02)
    assert torch.equal(ops.linear(x, at_once), ops.linear_int8_tokens(*ops.quantize_tokens(x, 0.02), at_once))
    assert not torch.equal(ops.linear(x, at_once), ops.linear(x, fast))
