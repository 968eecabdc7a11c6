"""Paged attention on the GPU's kernels against the reference: ragged batches, edges, empty splits."""

from itertools import product

import pytest
import torch

from kernels.attention.gpu_decode import choose_splits, start_decode
from kernels.kv_layout import KVLayout, KVOrder, KVType
from kernels.ops import AttentionParams, Ops
from kernels.tables import reference_ops
from oracles.attention_scene import AttentionScene, attention_scene
from oracles.tolerances import assert_close

REFERENCE = reference_ops()
BF16, F16, INT8 = torch.bfloat16, torch.float16, torch.int8
# (new tokens, context): a whole prompt, single next tokens, a chunk, a lone token.
MIXED = ((7, 7), (1, 40), (13, 29), (1, 1))
SINGLE = ((1, 70), (1, 16))
SIZES = ((64, 16), (80, 32), (96, 64), (128, 16), (256, 32))

by_dtypes = pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [(BF16, BF16), (F16, F16), (BF16, INT8), (F16, INT8)], ids=str
)


def make_layout(
    kv_dtype: torch.dtype,
    *,
    head_size: int = 64,
    block_size: int = 16,
    num_kv_heads: int = 1,
    order: KVOrder = KVOrder.BSKD,
) -> KVLayout:
    return KVLayout(
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        dtype=KVType.of(kv_dtype),
        order=order,
    )


def assert_same(ops: Ops, scene: AttentionScene, params: AttentionParams) -> None:
    found = ops.attention(scene.query, scene.layer, scene.ragged, params)
    expected = REFERENCE.attention(scene.query, scene.layer, scene.ragged, params)
    assert found.dtype == expected.dtype
    assert_close(found, expected.double().numpy())
    scene.fences.check()


@pytest.mark.parametrize("shares", [MIXED, SINGLE, ((20, 33),)], ids=["mixed", "single", "chunk"])
@by_dtypes
def test_every_kind_of_batch_in_every_type(
    ops: Ops, dtype: torch.dtype, kv_dtype: torch.dtype, shares: tuple[tuple[int, int], ...]
) -> None:
    scene = attention_scene(make_layout(kv_dtype, num_kv_heads=2), shares, group=3, dtype=dtype)
    assert_same(ops, scene, AttentionParams(scale=0.2))


@pytest.mark.parametrize("group", range(1, 9))
def test_query_heads_read_the_kv_head_of_their_group(ops: Ops, group: int) -> None:
    scene = attention_scene(make_layout(F16, num_kv_heads=2), ((3, 9), (1, 20)), group=group, dtype=F16)
    assert_same(ops, scene, AttentionParams(scale=0.125))


@pytest.mark.parametrize("order", KVOrder)
@pytest.mark.parametrize(("head_size", "block_size"), SIZES)
def test_head_and_page_sizes(ops: Ops, head_size: int, block_size: int, order: KVOrder) -> None:
    layout = make_layout(F16, head_size=head_size, block_size=block_size, order=order, num_kv_heads=2)
    scene = attention_scene(layout, ((9, 41), (1, 70)), group=2, dtype=F16)
    assert_same(ops, scene, AttentionParams(scale=head_size**-0.5))


@pytest.mark.parametrize("window", [1, 2, 16, 28, 29, 1000])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_windows_hide_what_lies_before_them_and_caps_bound_scores(
    ops: Ops, window: int, softcap: float | None
) -> None:
    scene = attention_scene(make_layout(F16), MIXED, group=2, dtype=F16)
    assert_same(ops, scene, AttentionParams(scale=0.5, window=window, softcap=softcap))


@pytest.mark.parametrize("window", [None, 70])
def test_contexts_of_several_tiles(ops: Ops, window: int | None) -> None:
    scene = attention_scene(make_layout(F16), ((90, 300), (1, 300)), group=2, dtype=F16)
    assert_same(ops, scene, AttentionParams(scale=0.3, window=window))


@pytest.mark.parametrize("num_splits", [1, 3, 16])
@pytest.mark.parametrize("window", [None, 65])
def test_splits_merge_to_the_whole_and_empty_ones_add_nothing(
    ops: Ops, window: int | None, num_splits: int
) -> None:
    scene = attention_scene(make_layout(F16), ((1, 200), (1, 64), (1, 1)), group=4, dtype=F16)
    params = AttentionParams(scale=0.3, window=window)
    found = torch.empty_like(scene.query)
    start_decode(scene.query, scene.layer, scene.ragged, params, found, num_splits=num_splits)
    expected = REFERENCE.attention(scene.query, scene.layer, scene.ragged, params)
    assert_close(found, expected.double().numpy())
    scene.fences.check()


def test_a_padded_row_without_context_gives_zeros(ops: Ops) -> None:
    scene = attention_scene(make_layout(F16), ((1, 20), (1, 0)), group=2, dtype=F16, spare_blocks=1)
    found = ops.attention(scene.query, scene.layer, scene.ragged, AttentionParams(scale=0.3))
    assert torch.isfinite(found).all()
    assert not found[1].any()


def test_large_scores_do_not_overflow(ops: Ops) -> None:
    scene = attention_scene(make_layout(F16), MIXED, group=2, dtype=F16)
    found = ops.attention(scene.query, scene.layer, scene.ragged, AttentionParams(scale=1e4))
    assert torch.isfinite(found).all()


def test_splits_fill_the_gpu_and_no_more() -> None:
    assert choose_splits(1, 8, 100_000, 132) == 32
    assert choose_splits(128, 8, 100_000, 132) == 1
    assert choose_splits(1, 8, 100, 132) == 2
    assert choose_splits(1, 1, 100_000, 132) == 64


@pytest.mark.slow
@pytest.mark.parametrize(("head_size", "block_size"), list(product((64, 80, 96, 128, 256), (16, 32, 64))))
@by_dtypes
@pytest.mark.parametrize("group", range(1, 9))
def test_the_whole_grid_of_shapes(
    ops: Ops, head_size: int, block_size: int, dtype: torch.dtype, kv_dtype: torch.dtype, group: int
) -> None:
    layout = make_layout(kv_dtype, head_size=head_size, block_size=block_size, num_kv_heads=2)
    scene = attention_scene(layout, ((9, 70), (1, 130), (1, 1)), group=group, dtype=dtype)
    for window, softcap in ((None, None), (17, 30.0)):
        params = AttentionParams(scale=head_size**-0.5, window=window, softcap=softcap)
        assert_same(ops, scene, params)
