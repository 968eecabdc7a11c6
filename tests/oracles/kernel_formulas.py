"""The formulas of the Ops contract in float64 numpy, one element at a time. Knows nothing of our kernels."""

import math

import numpy as np

Array = np.ndarray


def embed(token_ids: Array, table: Array) -> Array:
    return np.array([[table[token, column] for column in range(table.shape[1])] for token in token_ids])


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    out = np.zeros((len(x), len(weight)))
    for t, row in enumerate(x):
        for o, weights in enumerate(weight):
            out[t, o] = math.fsum(row * weights) + (0.0 if bias is None else bias[o])
    return out


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    out = np.zeros_like(x)
    for t, row in enumerate(x):
        root = math.sqrt(math.fsum(row**2) / len(row) + eps)
        for i, value in enumerate(row):
            out[t, i] = value / root * weight[i]
    return out


def rope(x: Array, cos: Array, sin: Array) -> Array:
    """Turn element i with element i + R/2 by multiplying complex numbers."""
    half = cos.shape[1]
    out = x.copy()
    for t, n, i in np.ndindex(x.shape[0], x.shape[1], half):
        turned = complex(x[t, n, i], x[t, n, i + half]) * complex(cos[t, i], sin[t, i])
        out[t, n, i], out[t, n, i + half] = turned.real, turned.imag
    return out


def gated_silu(gate_up: Array) -> Array:
    return _gated(gate_up, lambda x: x / (1 + math.exp(-x)))


def gated_gelu(gate_up: Array) -> Array:
    return _gated(
        gate_up, lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    )


def attend_one(
    query: Array,
    keys: Array,
    values: Array,
    position: int,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Array:
    """One query head at one position over one KV head's (C, D) context."""
    first = 0 if window is None else max(0, position - window + 1)
    weights: dict[int, float] = {}
    for at in range(first, position + 1):
        score = scale * math.fsum(query * keys[at])
        weights[at] = score if softcap is None else softcap * math.tanh(score / softcap)
    top = max(weights.values())
    total = math.fsum(math.exp(score - top) for score in weights.values())
    out = np.zeros_like(values[0])
    for at, score in weights.items():
        out = out + math.exp(score - top) / total * values[at]
    return out


def quantize_head(x: Array) -> tuple[Array, float]:
    """Symmetric absmax INT8 of one head of one token."""
    scale = float(np.abs(x).max()) / 127
    return (np.zeros_like(x) if scale == 0 else np.rint(x / scale)), scale


def _gated(gate_up: Array, activation) -> Array:
    inner = gate_up.shape[1] // 2
    out = np.zeros((len(gate_up), inner))
    for t, i in np.ndindex(out.shape):
        out[t, i] = activation(gate_up[t, i]) * gate_up[t, inner + i]
    return out
