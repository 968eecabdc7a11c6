"""Kernels on rows of tokens against the references, in every type, at odd sizes, between sentinels."""

import numpy as np
import pytest
import torch

from kernels.ops import Ops
from kernels.tables import reference_ops
from oracles.fences import Fences
from oracles.tolerances import assert_close

REFERENCE = reference_ops()
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_size = pytest.mark.parametrize("size", [1, 63, 100, 576])


def random(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert_close(found, expected.double().numpy())


@by_dtype
@by_size
def test_norms_equal_the_references(ops: Ops, rng, size: int, dtype: torch.dtype) -> None:
    fences = Fences()
    x = fences.around(30 * random(rng, 5, size, dtype=dtype))
    residual, weight = fences.around(random(rng, 5, size)), fences.around(random(rng, size))
    assert_same(ops.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))
    found = ops.add_rms_norm(x, residual, weight, 1e-5)
    for ours, theirs in zip(found, REFERENCE.add_rms_norm(x, residual, weight, 1e-5), strict=True):
        assert_same(ours, theirs)
    fences.check()


def test_norms_of_heads_read_them_in_place(ops: Ops, rng) -> None:
    heads = random(rng, 5, 6, 80, dtype=torch.float16)[:, 2:5]
    weight = random(rng, 80)
    assert_same(ops.rms_norm(heads, weight, 1e-6), REFERENCE.rms_norm(heads, weight, 1e-6))


@pytest.mark.parametrize("size", [2049, 8193])
def test_norms_of_long_rows_equal_the_references(ops: Ops, rng, size: int) -> None:
    x, weight = random(rng, 2, size, dtype=torch.float16), random(rng, size)
    assert_same(ops.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))


@by_dtype
@by_size
@pytest.mark.parametrize("name", ["gated_silu", "gated_gelu"])
def test_gates_equal_the_references(ops: Ops, rng, name: str, size: int, dtype: torch.dtype) -> None:
    fences = Fences()
    gate_up = fences.around(3 * random(rng, 5, 2 * size, dtype=dtype))
    assert_same(getattr(ops, name)(gate_up), getattr(REFERENCE, name)(gate_up))
    fences.check()


def test_gates_survive_large_values_of_either_sign(ops: Ops) -> None:
    gate_up = torch.tensor([[-500.0, 500.0, 0.0, 2.0, 2.0, 2.0]])
    for name in ("gated_silu", "gated_gelu"):
        assert_same(getattr(ops, name)(gate_up), getattr(REFERENCE, name)(gate_up))


@by_dtype
@pytest.mark.parametrize("size", [1, 63, 2050])
def test_selected_rows_are_copies(ops: Ops, rng, size: int, dtype: torch.dtype) -> None:
    fences = Fences()
    x, rows = fences.around(random(rng, 7, size, dtype=dtype)), torch.tensor([6, 0, 6])
    assert torch.equal(ops.select_rows(x, rows), x[rows])
    assert ops.select_rows(x, rows[:0]).shape == (0, size)
    fences.check()


@by_dtype
def test_embed_picks_rows_of_the_table(ops: Ops, rng, dtype: torch.dtype) -> None:
    table, token_ids = random(rng, 100, 7, dtype=dtype), torch.tensor([99, 0, 5])
    assert torch.equal(ops.embed(token_ids, table), table[token_ids])
