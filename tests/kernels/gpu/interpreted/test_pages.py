"""RoPE, KV writes and page copies against the references: every stored byte, in both orders."""

import numpy as np
import pytest
import torch

from kernels.kv_layout import KVLayout, KVOrder, KVType, LayerKV
from kernels.ops import Ops
from kernels.tables import reference_ops
from oracles.attention_scene import fenced_layer
from oracles.fences import Fences
from oracles.pages import poisoned_layer
from oracles.tolerances import assert_close

REFERENCE = reference_ops()
by_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
by_order = pytest.mark.parametrize("order", KVOrder)
by_quantization = pytest.mark.parametrize("is_int8", [False, True], ids=["16-bit", "int8"])


def random(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def stored(layer: LayerKV) -> list[torch.Tensor]:
    tensors = (layer.keys, layer.values, layer.key_scales, layer.value_scales)
    return [tensor for tensor in tensors if tensor is not None]


def assert_same_pages(found: LayerKV, expected: LayerKV) -> None:
    """Poison where nothing was written; INT8 at most a step off where rounding fell the other way."""
    for ours, theirs in zip(stored(found), stored(expected), strict=True):
        assert torch.equal(torch.isnan(ours), torch.isnan(theirs))
        if ours.dtype is torch.int8:
            difference = (ours.int() - theirs.int()).abs()
            assert difference.max() <= 1
            assert difference.float().mean() < 0.02
        else:
            coarsest = torch.bfloat16 if found.layout.is_int8 else ours.dtype
            assert_close(ours.nan_to_num(0), theirs.nan_to_num(0).double().numpy(), coarsest)


@by_dtype
@by_order
@by_quantization
@pytest.mark.parametrize(
    ("head_size", "rotary", "block_size", "num_tokens"),
    [(64, 64, 16, 1), (80, 80, 32, 7), (96, 48, 64, 67), (128, 128, 16, 5), (256, 64, 16, 3)],
)
def test_turned_and_written_tokens_equal_the_references(
    ops: Ops,
    rng,
    head_size: int,
    rotary: int,
    block_size: int,
    num_tokens: int,
    is_int8: bool,
    order: KVOrder,
    dtype: torch.dtype,
) -> None:
    kv_dtype = torch.int8 if is_int8 else dtype
    layout = KVLayout(
        block_size=block_size, num_kv_heads=2, head_size=head_size, dtype=KVType.of(kv_dtype), order=order
    )
    fences, num_blocks = Fences(), -(-num_tokens // block_size) + 1
    layers = [fenced_layer(poisoned_layer(layout, num_blocks), fences) for _ in range(3)]
    heads = fences.around(random(rng, num_tokens, 10, head_size, dtype=dtype))
    query, key, value = heads.split([6, 2, 2], dim=1)
    angles = torch.from_numpy(rng.uniform(0, 600, (num_tokens, rotary // 2))).float()
    slots = torch.from_numpy(rng.permutation(num_blocks * block_size)[:num_tokens])
    slots[num_tokens // 2] = -1 if num_tokens > 1 else 0
    rest = (angles.cos(), angles.sin(), slots)
    turned = ops.rope_write_kv(query, key, value, *rest, layers[0])
    expected = REFERENCE.rope_write_kv(query, key, value, *rest, layers[1])
    assert_close(turned, expected.double().numpy())
    assert_same_pages(layers[0], layers[1])
    turned_key = REFERENCE.rope(key, *rest[:2])
    ops.write_kv(turned_key, value, slots, layers[2])
    assert_same_pages(layers[2], layers[1])
    assert_close(ops.rope(key, *rest[:2]), turned_key.double().numpy())
    fences.check()


def test_a_head_of_zeros_has_the_scale_zero(ops: Ops) -> None:
    layout = KVLayout(block_size=16, num_kv_heads=1, head_size=64, dtype=KVType.INT8)
    layer = poisoned_layer(layout, 1)
    zeros = torch.zeros(16, 1, 64, dtype=torch.float16)
    ops.write_kv(zeros, zeros, torch.arange(16), layer)
    assert not any(tensor.any() for tensor in stored(layer))


@by_dtype
@by_order
@by_quantization
def test_copied_blocks_equal_their_sources_and_no_other_changes(
    ops: Ops, rng, is_int8: bool, order: KVOrder, dtype: torch.dtype
) -> None:
    kv_dtype = torch.int8 if is_int8 else dtype
    layout = KVLayout(block_size=16, num_kv_heads=3, head_size=80, dtype=KVType.of(kv_dtype), order=order)
    fences = Fences()
    layer = fenced_layer(poisoned_layer(layout, 5), fences)
    key, value = random(rng, 80, 3, 80, dtype=dtype), random(rng, 80, 3, 80, dtype=dtype)
    REFERENCE.write_kv(key, value, torch.arange(80), layer)
    before = [tensor.clone() for tensor in stored(layer)]
    ops.copy_blocks(torch.tensor([4, 0]), torch.tensor([1, 3]), layer)
    for was, now in zip(before, stored(layer), strict=True):
        assert torch.equal(now, was[[0, 4, 2, 0, 4]])
    ops.copy_blocks(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64), layer)
    fences.check()
