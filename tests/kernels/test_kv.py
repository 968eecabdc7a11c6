"""KV pages: where tokens land, that nothing else is touched, and what INT8 loses."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels.kv.reference import quantize_heads, read_kv
from kernels.kv_layout import KVLayout, KVOrder, KVType, LayerKV
from kernels.ops import Ops
from oracles import kernel_formulas as formulas
from oracles.pages import poisoned_layer, read_slot

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_order = pytest.mark.parametrize("order", KVOrder)


def make_layout(dtype: torch.dtype, order: KVOrder, block_size: int = 7) -> KVLayout:
    return KVLayout(block_size=block_size, num_kv_heads=3, head_size=5, dtype=KVType.of(dtype), order=order)


@by_dtype
@by_order
@pytest.mark.parametrize(("num_tokens", "block_size"), [(1, 1), (7, 16), (63, 7), (100, 64)])
def test_written_tokens_land_in_their_slots_and_nowhere_else(
    ops: Ops, rng, num_tokens: int, block_size: int, dtype: torch.dtype, order: KVOrder
) -> None:
    layout = make_layout(dtype, order, block_size)
    num_blocks = -(-num_tokens // block_size) + 2
    layer = poisoned_layer(layout, num_blocks)
    slots = torch.from_numpy(rng.permutation(num_blocks * block_size)[:num_tokens])
    key, value = (torch.from_numpy(rng.standard_normal((num_tokens, 3, 5))).float() for _ in range(2))
    assert ops.write_kv(key, value, slots, layer) is None
    for exact_TKD, pages, scales in (
        (key, layer.keys, layer.key_scales),
        (value, layer.values, layer.value_scales),
    ):
        for t, head in np.ndindex(num_tokens, 3):
            found = read_slot(layer, pages, scales, int(slots[t]), head)
            exact = exact_TKD[t, head].to(torch.float32 if layout.is_int8 else dtype).double().numpy()
            half_a_step = np.abs(exact).max() / 127 / 2 if layout.is_int8 else 0.0
            assert np.abs(found - exact).max() <= half_a_step * (1 + 1e-5)
        untouched = torch.isnan(pages if scales is None else scales).sum().item()
        assert untouched == (num_blocks * block_size - num_tokens) * 3 * (5 if scales is None else 1)


@by_dtype
@by_order
def test_pages_read_back_in_the_tables_order(ops: Ops, rng, dtype: torch.dtype, order: KVOrder) -> None:
    layer = poisoned_layer(make_layout(dtype, order), num_blocks=4)
    key, value = (torch.from_numpy(rng.standard_normal((28, 3, 5))).float() for _ in range(2))
    ops.write_kv(key, value, torch.arange(28), layer)
    blocks = torch.tensor([2, 0, 3], dtype=torch.int32)
    keys, values = read_kv(layer, blocks, torch.float32)
    slots = [block * 7 + place for block in blocks.tolist() for place in range(7)]
    for found, pages, scales in (
        (keys, layer.keys, layer.key_scales),
        (values, layer.values, layer.value_scales),
    ):
        expected = [[read_slot(layer, pages, scales, slot, head) for head in range(3)] for slot in slots]
        assert found.dtype == torch.float32
        assert np.allclose(found.double().numpy(), np.array(expected), rtol=1e-6, atol=0)


def test_slots_below_zero_write_nothing(ops: Ops, rng) -> None:
    layer = poisoned_layer(make_layout(torch.float32, KVOrder.BSKD), num_blocks=2)
    key = torch.ones(3, 3, 5)
    ops.write_kv(key, key, torch.tensor([-1, 8, -1]), layer)
    assert (~torch.isnan(layer.keys)).sum() == 3 * 5
    assert not torch.isnan(layer.keys[1, 1]).any()


@by_dtype
@by_order
def test_rope_write_kv_is_rope_and_then_write_kv(ops: Ops, rng, dtype: torch.dtype, order: KVOrder) -> None:
    layout = KVLayout(block_size=7, num_kv_heads=3, head_size=6, dtype=KVType.of(dtype), order=order)
    together, apart = poisoned_layer(layout, num_blocks=3), poisoned_layer(layout, num_blocks=3)
    query, key, value = torch.from_numpy(rng.standard_normal((11, 12, 6))).float().split([6, 3, 3], dim=1)
    angles = torch.from_numpy(rng.uniform(0, 600, (11, 2))).float()
    slots = torch.from_numpy(rng.permutation(21)[:11])
    turned = ops.rope_write_kv(query, key, value, angles.cos(), angles.sin(), slots, together)
    assert torch.equal(turned, ops.rope(query, angles.cos(), angles.sin()))
    ops.write_kv(ops.rope(key, angles.cos(), angles.sin()), value, slots, apart)
    for found, expected in zip(stored(together), stored(apart), strict=True):
        assert torch.equal(found.nan_to_num(9e9), expected.nan_to_num(9e9))


@by_dtype
@by_order
def test_copied_blocks_equal_their_sources_and_no_other_changes(
    ops: Ops, rng, dtype: torch.dtype, order: KVOrder
) -> None:
    layer = poisoned_layer(make_layout(dtype, order), num_blocks=5)
    key, value = (torch.from_numpy(rng.standard_normal((35, 3, 5))).float() for _ in range(2))
    ops.write_kv(key, value, torch.arange(35), layer)
    before = [tensor.clone() for tensor in stored(layer)]
    ops.copy_blocks(torch.tensor([4, 0]), torch.tensor([1, 3]), layer)
    for was, now in zip(before, stored(layer), strict=True):
        assert torch.equal(now, was[[0, 4, 2, 0, 4]])


def stored(layer: LayerKV) -> list[torch.Tensor]:
    tensors = (layer.keys, layer.values, layer.key_scales, layer.value_scales)
    return [tensor for tensor in tensors if tensor is not None]


@settings(max_examples=60, deadline=None)
@example([1.1754943508222875e-38], 1e-6)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=65),
    st.sampled_from([1e-6, 1.0, 1e4]),
)
def test_int8_is_off_by_at_most_half_a_step(values: list[float], factor: float) -> None:
    x = torch.tensor(values, dtype=torch.float32)[None, None] * factor
    quantized, scales = quantize_heads(x)
    assert quantized.dtype == torch.int8
    assert scales.dtype == torch.float32
    assert quantized.min() >= -127
    exact = x[0, 0].double().numpy()
    _, scale = formulas.quantize_head(exact)
    found = quantized[0, 0].double().numpy() * float(scales)
    # The bound is half a step; the rest is float32's own rounding of x / scale, at most 127 of its units, and
    # of the scale where that is subnormal or zero: half of the least number, 127 times.
    assert np.abs(found - exact).max() <= scale * (0.5 + 127 * 2**-22) + 127 * 2**-150


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_int8_agrees_with_the_formula(rng, dtype: torch.dtype) -> None:
    x = torch.from_numpy(rng.standard_normal((63, 3, 7))).to(dtype)
    quantized, scales = quantize_heads(x)
    for t, head in np.ndindex(63, 3):
        expected, scale = formulas.quantize_head(x[t, head].double().numpy())
        assert float(scales[t, head]) == pytest.approx(scale, rel=1e-6)
        # A value in the middle between two steps may go either way.
        assert np.abs(quantized[t, head].double().numpy() - expected).max() <= 1
        assert quantized[t, head].abs().max() == 127
    differing = sum(
        int((quantized[t, h].numpy() != formulas.quantize_head(x[t, h].double().numpy())[0]).sum())
        for t, h in np.ndindex(63, 3)
    )
    assert differing <= 63 * 3 * 7 // 100


def test_a_head_of_zeros_has_the_scale_zero_and_reads_as_zeros(ops: Ops) -> None:
    layer = poisoned_layer(make_layout(torch.int8, KVOrder.BSKD), num_blocks=1)
    zeros = torch.zeros(7, 3, 5)
    ops.write_kv(zeros, zeros, torch.arange(7), layer)
    assert not layer.key_scales.any()
    keys, values = read_kv(layer, torch.tensor([0]), torch.float32)
    assert not keys.any()
    assert not values.any()


def test_int8_scales_belong_to_one_token_and_head(rng) -> None:
    x = torch.from_numpy(rng.standard_normal((7, 3, 5))).float()
    alone, _ = quantize_heads(x[2:3, 1:2])
    loud = x.clone()
    loud[:2] *= 1e6
    loud[2, 0] *= 1e6
    together, _ = quantize_heads(loud)
    assert torch.equal(together[2:3, 1:2], alone)


def test_a_tokens_bytes_are_those_of_its_pages() -> None:
    for dtype in DTYPES:
        for order in KVOrder:
            layout = make_layout(dtype, order)
            layer = poisoned_layer(layout, num_blocks=3)
            tensors = (layer.keys, layer.values, layer.key_scales, layer.value_scales)
            total = sum(tensor.nbytes for tensor in tensors if tensor is not None)
            assert total == layout.token_bytes * 3 * layout.block_size
