"""Products with quantized matrices against the references, at odd sizes, between sentinels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.int4_weight import Int4Weight, pack_int4, quantize_int4
from kernels.int8_weight import Int8Weight, pack_int8
from kernels.ops import LinearWeight, Ops
from kernels.tables import reference_ops
from oracles.fences import Fences
from oracles.tolerances import assert_close

REFERENCE = reference_ops()
DTYPES = (torch.bfloat16, torch.float16)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Rows and columns around the edges of tiles.
SIZES = ((1, 7, 63), (5, 33, 100), (16, 70, 256), (17, 64, 320), (40, 129, 96))


def random(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def fenced(weight: Int8Weight | Int4Weight, fences: Fences) -> Int8Weight | Int4Weight:
    names = ("weight", "packed", "scales", "minima", "bias")
    tensors = {name: getattr(weight, name, None) for name in names}
    return replace(weight, **{name: fences.around(t) for name, t in tensors.items() if t is not None})


def assert_product(found: torch.Tensor, weight: Int8Weight | Int4Weight, x: torch.Tensor) -> None:
    """Compare with a float32 product. A kernel may round elements to the activation's type: the error is that
    of terms, not of their sum."""
    assert found.dtype == weight.activation_dtype
    exact = REFERENCE.linear(x, replace(weight, activation_dtype=torch.float32))
    scale = max(1.0, float(x.abs().max())) * 2
    assert_close(found.float() / scale, exact.double().numpy() / scale, found.dtype)


@by_dtype
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_tokens", "num_out", "num_in"), SIZES)
def test_linear_int8_equals_the_reference(
    ops: Ops, rng, num_tokens: int, num_out: int, num_in: int, has_bias: bool, dtype: torch.dtype
) -> None:
    fences = Fences()
    bias = random(rng, num_out, dtype=dtype) if has_bias else None
    weight = fenced(pack_int8(random(rng, num_out, num_in), bias=bias, activation_dtype=dtype), fences)
    x = fences.around(random(rng, num_tokens, num_in, dtype=dtype))
    for found in (ops.linear_int8(x, weight), ops.linear(x, weight)):
        assert_product(found, weight, x)
    fences.check()


@by_dtype
@pytest.mark.parametrize("has_minima", [False, True])
@pytest.mark.parametrize(("num_tokens", "num_out", "num_in"), [(t, o, -(-i // 32) * 32) for t, o, i in SIZES])
def test_linear_int4_equals_the_reference(
    ops: Ops, rng, num_tokens: int, num_out: int, num_in: int, has_minima: bool, dtype: torch.dtype
) -> None:
    fences = Fences()
    if has_minima:
        bias = random(rng, num_out, dtype=dtype)
        weight = quantize_int4(random(rng, num_out, num_in), bias=bias, activation_dtype=dtype)
    else:
        values = torch.from_numpy(rng.integers(0, 16, (num_out, num_in)))
        weight = pack_int4(values, random(rng, num_out, num_in // 32) / 8, activation_dtype=dtype)
    weight = fenced(weight, fences)
    x = fences.around(random(rng, num_tokens, num_in, dtype=dtype))
    for found in (ops.linear_int4(x, weight), ops.linear(x, weight)):
        assert_product(found, weight, x)
    fences.check()


@by_dtype
@pytest.mark.parametrize("size", [1, 63, 2050])
def test_tokens_are_quantized_as_by_the_reference(ops: Ops, rng, size: int, dtype: torch.dtype) -> None:
    fences = Fences()
    x = random(rng, 5, size, dtype=dtype)
    x[2] = 0
    x = fences.around(x)
    steps, scales = ops.quantize_tokens(x)
    expected_steps, expected_scales = REFERENCE.quantize_tokens(x)
    assert torch.allclose(scales, expected_scales, rtol=1e-6, atol=0)
    assert torch.equal(steps, expected_steps)
    fences.check()


@by_dtype
@pytest.mark.parametrize("size", [1, 63, 2050])
def test_tokens_are_quantized_by_one_scale_as_by_the_reference(
    ops: Ops, rng, size: int, dtype: torch.dtype
) -> None:
    fences = Fences()
    x = random(rng, 5, size, dtype=dtype)
    x[1], x[2] = 0, 1000
    x = fences.around(x)
    steps, scales = ops.quantize_tokens(x, 0.013)
    expected_steps, expected_scales = REFERENCE.quantize_tokens(x, 0.013)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(steps, expected_steps)
    assert int(steps.abs().max()) == 127
    fences.check()


@by_dtype
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_tokens", "num_out", "num_in"), SIZES)
def test_integer_products_equal_the_reference(
    ops: Ops, rng, num_tokens: int, num_out: int, num_in: int, has_bias: bool, dtype: torch.dtype
) -> None:
    fences = Fences()
    bias = random(rng, num_out, dtype=dtype) if has_bias else None
    weight = fenced(pack_int8(random(rng, num_out, num_in), bias=bias, activation_dtype=dtype), fences)
    steps = fences.around(torch.from_numpy(rng.integers(-127, 128, (num_tokens, num_in))).to(torch.int8))
    scales = fences.around(random(rng, num_tokens).abs() / 100)
    found = ops.linear_int8_tokens(steps, scales, weight)
    exact = replace(weight, activation_dtype=torch.float32)
    assert_close(found, REFERENCE.linear_int8_tokens(steps, scales, exact).double().numpy())
    fences.check()


def test_the_largest_sums_of_integers_do_not_overflow(ops: Ops) -> None:
    steps = torch.full((1, 4096), 127, dtype=torch.int8)
    weight = Int8Weight(weight=steps, scales=torch.ones(1), activation_dtype=torch.float32)
    assert ops.linear_int8_tokens(steps, torch.ones(1), weight).item() == 4096 * 127 * 127


def test_linear_chooses_by_the_weight_and_the_number_of_tokens(ops: Ops, rng) -> None:
    rows, x = random(rng, 7, 96), random(rng, 33, 96, dtype=torch.float16)
    fast = pack_int8(rows, activation_dtype=torch.float16, takes_int8_tokens=True)
    assert torch.equal(ops.linear(x, fast), ops.linear_int8_tokens(*ops.quantize_tokens(x), fast))
    assert torch.equal(ops.linear(x[:32], fast), ops.linear_int8(x[:32], fast))
    at_once = replace(fast, input_scale=0.02)
    assert torch.equal(ops.linear(x, at_once), ops.linear_int8_tokens(*ops.quantize_tokens(x, 0.02), at_once))
    dense = LinearWeight(weight=rows.half())
    assert torch.equal(ops.linear(x, dense), REFERENCE.linear(x, dense))
