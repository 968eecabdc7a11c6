"""Paged attention, rotary embedding and page writes against float64, on every level of this machine."""

import numpy as np
import pytest

from kernels.cpu.library import NativeError, NativeLibrary, NativeUnsupported
from kernels.cpu.ops import AttentionCall, attend, read_kv

BF16_ERROR, INT8_ERROR = 0.008, 0.02


def turned(x, cos, sin):
    half = cos.shape[1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s, rest], axis=-1)


def normed(x, weight):
    return x if weight is None else x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * weight


def plain_attention(call, keys, values):
    """Queries against all keys so far, [slots, kv_heads, head_size], already turned."""
    groups = call.q.shape[1] // keys.shape[1]
    q = turned(normed(call.q.astype(np.float64), call.q_norm), call.cos, call.sin)
    keys, values = (np.repeat(x, groups, axis=1) for x in (keys, values))
    scores = np.einsum("qhd,khd->hqk", q, keys) * call.scale
    if call.softcap:
        scores = call.softcap * np.tanh(scores / call.softcap)
    distance = call.first_position + np.arange(len(q))[:, None] - np.arange(len(keys))
    scores = np.where((distance < 0) | (distance >= (call.window or len(keys))), -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), values)


def random_call(rng, shape, num_tokens, first, blocks, **extra):
    def draw(heads):
        return rng.normal(size=(num_tokens, heads, shape.head_size)).astype(np.float32)

    angles = (first + np.arange(num_tokens))[:, None] * 10.0 ** -np.arange(shape.rotary // 2)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    q, k, v = draw(shape.num_heads), draw(shape.num_kv_heads), draw(shape.num_kv_heads)
    scale = shape.head_size**-0.5
    return AttentionCall(
        q=q, k=k, v=v, blocks=blocks, first_position=first, scale=scale, cos=cos, sin=sin, **extra
    )


def run_in_two_steps(library, rig, shape, lengths, block_size, is_int8, level, by_split=False, **extra):
    """A first chunk and a second one that also sees the first; the second's output, and the error's base."""
    rng = np.random.default_rng(sum(lengths))
    num_blocks = -(-sum(lengths) // block_size)
    (pages,) = rig.pages(shape, num_blocks + 2, block_size, is_int8)
    blocks = rng.permutation(num_blocks + 2)[:num_blocks].astype(np.int32)
    norms = {name: extra.get(name) for name in ("q_norm", "k_norm")}
    first = random_call(rng, shape, lengths[0], 0, blocks, **norms)
    attend(library, pages, first, np.empty_like(first.q), level)
    call = random_call(rng, shape, lengths[1], lengths[0], blocks, by_split=by_split, **extra)
    out = np.full_like(call.q, np.nan)
    attend(library, pages, call, out, level)
    exact = [turned(normed(c.k.astype(np.float64), c.k_norm), c.cos, c.sin) for c in (first, call)]
    values = np.concatenate([first.v, call.v])
    return out, plain_attention(call, np.concatenate(exact), values.astype(np.float64))


CASES = [
    pytest.param({"num_heads": 6, "num_kv_heads": 2, "head_size": 16}, (1, 1), 16, {}, id="first-two-tokens"),
    pytest.param(
        {"num_heads": 9, "num_kv_heads": 3, "head_size": 64}, (63, 37), 64, {}, id="groups-of-three"
    ),
    pytest.param({"num_heads": 4, "num_kv_heads": 4, "head_size": 80}, (130, 3), 32, {}, id="no-groups"),
    pytest.param({"num_heads": 8, "num_kv_heads": 1, "head_size": 32}, (300, 1), 16, {}, id="decode"),
    pytest.param({"num_heads": 4, "num_kv_heads": 1, "head_size": 256}, (100, 29), 128, {}, id="large-heads"),
    pytest.param(
        {"num_heads": 6, "num_kv_heads": 2, "head_size": 32}, (250, 60), 16, {"window": 37}, id="window"
    ),
    pytest.param(
        {"num_heads": 6, "num_kv_heads": 2, "head_size": 32}, (40, 5), 16, {"softcap": 1.5}, id="softcap"
    ),
]


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize(("sizes", "lengths", "block_size", "extra"), CASES)
def test_attention_equals_the_plain_formula(
    library: NativeLibrary, rig, sizes, lengths, block_size, extra, is_int8
):
    shape = rig.shape(num_layers=1, rotary=16, **sizes)
    for level in library.levels:
        out, expected = run_in_two_steps(library, rig, shape, lengths, block_size, is_int8, level, **extra)
        error = np.abs(out - expected).mean() / np.abs(expected).mean()
        assert error < (INT8_ERROR if is_int8 else BF16_ERROR), (level, error)


def test_queries_and_keys_are_normed_before_they_turn(library: NativeLibrary, rig):
    shape = rig.shape(num_layers=1, head_size=48, rotary=32)
    rng = np.random.default_rng(1)
    weights = {name: rng.uniform(0.5, 2, 48).astype(np.float32) for name in ("q_norm", "k_norm")}
    for level in library.levels:
        out, expected = run_in_two_steps(library, rig, shape, (20, 9), 16, False, level, **weights)
        assert np.abs(out - expected).mean() / np.abs(expected).mean() < BF16_ERROR, level


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("window", [0, 100])
def test_tiles_and_splits_give_the_same_bits(library: NativeLibrary, rig, is_int8, window):
    shape = rig.shape(num_layers=1, head_size=32, rotary=16)
    for level in library.levels:
        whole, _ = run_in_two_steps(library, rig, shape, (211, 90), 64, is_int8, level, window=window)
        split, _ = run_in_two_steps(library, rig, shape, (211, 90), 64, is_int8, level, True, window=window)
        assert (whole == split).all(), level


def test_pages_read_back_as_they_were_written(library: NativeLibrary, rig):
    shape = rig.shape(num_layers=1, head_size=32, rotary=0)
    rng = np.random.default_rng(2)
    for is_int8, limit in ((False, 2**-8), (True, 1 / 127)):
        (pages,) = rig.pages(shape, 4, 16, is_int8)
        blocks = np.asarray([2, 0, 3], np.int32)
        call = random_call(rng, shape, 35, 0, blocks)
        attend(library, pages, call, np.empty_like(call.q))
        keys, values = read_kv(library, pages, blocks, 35)
        assert np.abs(keys - call.k).max() <= limit * np.abs(call.k).max()
        assert np.abs(values - call.v).max() <= limit * np.abs(call.v).max()


def test_layouts_and_blocks_that_do_not_fit_are_refused(library: NativeLibrary, rig):
    shape = rig.shape(num_layers=1, rotary=16)
    (pages,) = rig.pages(shape, 2, 16)
    call = random_call(np.random.default_rng(3), shape, 20, 0, np.asarray([0, 2], np.int32))
    with pytest.raises(NativeError, match=r"block is 2; it must be 0 to 1"):
        attend(library, pages, call, np.empty_like(call.q))
    (odd,) = rig.pages(shape, 2, 24)
    with pytest.raises(NativeUnsupported, match="block_size 24 is not a power of two"):
        attend(library, odd, call, np.empty_like(call.q))
