"""Norms, activations and the choice of the best tokens, at odd sizes, on every level of this machine."""

import numpy as np
import pytest

from kernels.cpu.abi import GateActivation
from kernels.cpu.library import NativeLibrary
from kernels.cpu.ops import gated, rms_norm, top_k


@pytest.mark.parametrize("size", [1, 7, 63, 100, 576])
def test_rms_norm_equals_its_formula(library: NativeLibrary, size):
    rng = np.random.default_rng(size)
    x, weight = rng.normal(size=(3, size)).astype(np.float32), rng.normal(size=size).astype(np.float32)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True) + 1e-5) * weight
    for level in library.levels:
        out = np.full_like(x, np.nan)
        rms_norm(library, x, weight, out, 1e-5, level)
        assert np.allclose(out, expected, rtol=1e-5, atol=1e-6), level


@pytest.mark.parametrize("activation", list(GateActivation))
def test_gate_equals_its_formula_far_out_too(library: NativeLibrary, activation):
    rng = np.random.default_rng(7)
    gate = np.concatenate([rng.normal(size=90) * 3, [0, 40, -40, 90, -90, 3e4, -3e4]]).astype(np.float32)
    up, wide = rng.normal(size=97).astype(np.float32), gate.astype(np.float64)
    with np.errstate(over="ignore"):
        silu = wide / (1 + np.exp(-wide))
    gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    expected = (silu if activation is GateActivation.SILU else gelu) * up
    for level in library.levels:
        out = np.full_like(gate, np.nan)
        gated(library, activation, gate, up, out, level)
        assert np.allclose(out, expected, rtol=3e-6, atol=1e-6), level


@pytest.mark.parametrize(("size", "k"), [(1, 1), (100, 1), (131, 40), (49, 49), (1000, 64)])
def test_top_k_is_a_stable_descending_sort(library: NativeLibrary, size, k):
    logits = np.random.default_rng(size + k).integers(-20, 20, size).astype(np.float32)
    expected = np.argsort(-logits, kind="stable")[:k]
    for level in library.levels:
        ids, values = top_k(library, logits, k, level)
        assert (ids == expected).all(), level
        assert (values == logits[expected]).all(), level


def test_top_k_passes_over_what_is_not_a_number(library: NativeLibrary):
    logits = np.full(50, np.nan, np.float32)
    logits[[7, 33]] = [1.0, -np.inf]
    for level in library.levels:
        assert top_k(library, logits, 3, level)[0].tolist() == [7, 33, -1], level
