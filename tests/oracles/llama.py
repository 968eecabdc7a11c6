"""Llama in float64 numpy, from its formulas: no cache, no fused matrices, RoPE in pairs as files store it.

Knows tensor names and nothing of our loader, decoder or operations.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class LlamaShape:
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    rotary_size: int = 16
    theta: float = 10_000.0
    eps: float = 1e-5
    position_divisor: float = 1.0


def llama_logits(tensors: Mapping[str, Array], shape: LlamaShape, token_ids: list[int]) -> Array:
    """Return (T, V): the logits at every position of one sequence."""
    weights = {name: np.asarray(values, dtype=np.float64) for name, values in tensors.items()}
    x = weights["token_embd.weight"][token_ids]
    for layer in range(shape.num_layers):
        own = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"blk.{layer}.")}
        x = x + _attention(_norm(x, own["attn_norm.weight"], shape.eps), own, shape, weights)
        x = x + _feed_forward(_norm(x, own["ffn_norm.weight"], shape.eps), own)
    x = _norm(x, weights["output_norm.weight"], shape.eps)
    return x @ weights.get("output.weight", weights["token_embd.weight"]).T


def _norm(x: Array, weight: Array, eps: float) -> Array:
    return np.array([row / math.sqrt(np.mean(row * row) + eps) for row in x]) * weight


def _feed_forward(x: Array, own: Mapping[str, Array]) -> Array:
    gate = x @ own["ffn_gate.weight"].T
    return (gate / (1 + np.exp(-gate)) * (x @ own["ffn_up.weight"].T)) @ own["ffn_down.weight"].T


def _attention(x: Array, own: Mapping[str, Array], shape: LlamaShape, weights: Mapping[str, Array]) -> Array:
    query, key, value = (
        (x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", 0.0)).reshape(len(x), -1, shape.head_size)
        for name in ("attn_q", "attn_k", "attn_v")
    )
    factors = weights.get("rope_freqs.weight", np.ones(shape.rotary_size // 2))
    query, key = _turn_pairs(query, shape, factors), _turn_pairs(key, shape, factors)
    group = shape.num_heads // shape.num_kv_heads
    out = np.zeros_like(query)
    for t, head in np.ndindex(len(x), shape.num_heads):
        scores = key[: t + 1, head // group] @ query[t, head] / math.sqrt(shape.head_size)
        weight = np.exp(scores - scores.max())
        out[t, head] = weight / weight.sum() @ value[: t + 1, head // group]
    return out.reshape(len(x), -1) @ own["attn_output.weight"].T


def _turn_pairs(x: Array, shape: LlamaShape, factors: Array) -> Array:
    """Turn elements 2i and 2i + 1 of every head by position / theta^(2i / R) / factor."""
    out = x.copy()
    for position, i in np.ndindex(len(x), shape.rotary_size // 2):
        angle = position / shape.position_divisor / shape.theta ** (2 * i / shape.rotary_size) / factors[i]
        cos, sin = math.cos(angle), math.sin(angle)
        even, odd = x[position, :, 2 * i], x[position, :, 2 * i + 1]
        out[position, :, 2 * i] = even * cos - odd * sin
        out[position, :, 2 * i + 1] = even * sin + odd * cos
    return out
