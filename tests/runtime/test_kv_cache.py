"""The pool's size: every refusal, every limit, and the line that explains it."""

import re
from dataclasses import replace

import pytest
import torch

from appliance.engine.batch import BlockCopy
from appliance.engine.sequence import BlockId
from appliance.errors import NotEnoughMemory
from appliance.runtime.human_size import human_size
from appliance.runtime.kv_cache import allocate_kv, copy_blocks
from appliance.runtime.kv_demand import KVDemand
from appliance.runtime.kv_plan import KVPlan, plan_kv
from kernels.kv_layout import KVLayout, KVOrder, KVType

GIB, MIB, KIB = 2**30, 2**20, 2**10
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
# 2 * 2 * 64 * 4 bytes a token and layer: 1 KiB. 10 layers of 16 tokens: 160 KiB a block.
LAYOUT = KVLayout(block_size=16, num_kv_heads=2, head_size=64, dtype=KVType.F32)
BLOCK = 160 * KIB


def demand(
    free_bytes: int, *, device: torch.device = CPU, context: int = 1000, sequences: int = 8, **wish: object
) -> KVDemand:
    return KVDemand(
        layout=LAYOUT,
        device_type=device.type,
        num_layers=10,
        context_length=context,
        max_sequences=sequences,
        free_bytes=free_bytes,
        **wish,
    )


def plan(free_bytes: int, **wishes: object) -> KVPlan:
    return plan_kv(demand(free_bytes, **wishes))


def test_the_pool_takes_what_is_free_less_the_reserve() -> None:
    found = plan(562 * MIB)
    assert found.block_bytes == BLOCK
    assert found.num_blocks == 50 * MIB // BLOCK
    assert found.pool_bytes == found.num_blocks * BLOCK


@pytest.mark.parametrize(("device", "left"), [(CPU, 2 * GIB), (CUDA, int(3.2 * GIB))])
def test_the_reserve_grows_with_free_memory_more_where_others_share_it(
    device: torch.device, left: int
) -> None:
    found = plan(4 * GIB, device=device, context=100_000, sequences=1000)
    assert abs(found.num_blocks - left // BLOCK) <= 1


def test_the_pool_is_never_larger_than_the_sequences_can_use() -> None:
    found = plan(64 * GIB)
    assert found.num_blocks == 8 * 63  # 1000 tokens are 62.5 blocks of 16


def test_int8_needs_less_than_a_third_of_float32() -> None:
    layout = KVLayout(block_size=16, num_kv_heads=2, head_size=64, dtype=KVType.INT8)
    assert layout.token_bytes == 2 * 2 * (64 + 4)
    found = plan_kv(replace(demand(600 * MIB), layout=layout))
    assert found.num_blocks == min(88 * MIB // (272 * 160), 504)


@pytest.mark.parametrize(
    ("wish", "budget"),
    [
        ({"wanted_bytes": 20 * MIB}, 20 * MIB),
        ({"wanted_share": 0.25}, 25 * MIB),
        ({"wanted_share": 1.0}, 100 * MIB),
    ],
)
def test_a_wish_overrules_the_reserve(wish: dict[str, object], budget: int) -> None:
    assert plan(100 * MIB, **wish).num_blocks == min(budget // BLOCK, 504)


def test_a_wish_for_everything_is_granted_and_a_byte_more_is_refused() -> None:
    assert plan(64 * MIB, wanted_bytes=64 * MIB).num_blocks == 64 * MIB // BLOCK
    with pytest.raises(
        NotEnoughMemory, match=r"set to 64\.0 MiB and 64\.0 MiB are free; lower --kv-memory to 57M"
    ):
        plan(64 * MIB, wanted_bytes=64 * MIB + 1)


@pytest.mark.parametrize("free_bytes", [0, 100 * MIB, 512 * MIB, 512 * MIB + 16 * BLOCK - 1])
def test_too_little_free_memory_is_refused_with_what_is_needed_and_what_helps(free_bytes: int) -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        plan(free_bytes)
    message = caught.value.message
    assert "at least 2.5 MiB" in message  # 256 tokens
    assert f"{human_size(free_bytes)} free - 512.0 MiB reserve" in message
    assert f"leave {human_size(max(0, free_bytes - 512 * MIB))}" in message
    missing = -(-max(512 * MIB + 16 * BLOCK - free_bytes, 1) // MIB)
    assert f"close programs that hold {missing} MiB or more" in message


def test_the_smallest_useful_pool_is_accepted() -> None:
    assert plan(512 * MIB + 16 * BLOCK).num_blocks == 16


def test_a_wish_too_small_to_use_is_refused() -> None:
    with pytest.raises(NotEnoughMemory, match=r"at least 2\.5 MiB and 1\.0 MiB asked for leave 1\.0 MiB"):
        plan(64 * GIB, wanted_bytes=MIB)
    with pytest.raises(NotEnoughMemory, match="at least"):
        plan(64 * GIB, wanted_bytes=0)


def test_a_short_context_needs_no_more_than_itself() -> None:
    found = plan(512 * MIB + 3 * BLOCK, context=33, sequences=4)
    assert found.num_blocks == 3
    with pytest.raises(NotEnoughMemory):
        plan(512 * MIB + 3 * BLOCK - 1, context=33, sequences=4)


def test_the_explanation_is_one_line_whose_arithmetic_holds() -> None:
    found = plan(562 * MIB)
    assert "\n" not in found.explanation
    assert "562.0 MiB free - 512.0 MiB reserve = 50.0 MiB" in found.explanation
    assert "8 sequences x 1000 tokens use at most 504 blocks" in found.explanation
    match = re.search(r"(\d+) blocks x (\d+) tokens x ([\d.]+) KiB = ([\d.]+) MiB$", found.explanation)
    assert match
    blocks, tokens, token_kib, total_mib = (float(group) for group in match.groups())
    assert blocks == found.num_blocks
    assert blocks * tokens * token_kib / KIB == pytest.approx(total_mib, abs=0.1)
    assert "20.0 MiB asked for = 20.0 MiB" in plan(GIB, wanted_bytes=20 * MIB).explanation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("order", KVOrder)
def test_the_pool_is_one_allocation_of_zeros_seen_layer_by_layer(dtype: torch.dtype, order: KVOrder) -> None:
    layout = KVLayout(block_size=7, num_kv_heads=3, head_size=5, dtype=KVType.of(dtype), order=order)
    layers = allocate_kv(layout, num_layers=3, num_blocks=4, device=CPU)
    assert len(layers) == 3
    tensors = [(layer.keys, layer.values, layer.key_scales, layer.value_scales) for layer in layers]
    total = 0
    for kind in zip(*tensors, strict=True):
        if kind[0] is None:
            assert dtype != torch.int8
            continue
        assert len({tensor.untyped_storage().data_ptr() for tensor in kind}) == 1
        assert len({tensor.data_ptr() for tensor in kind}) == 3
        assert not any(tensor.any() for tensor in kind)
        total += sum(tensor.nbytes for tensor in kind)
    assert total == layout.token_bytes * 7 * 4 * 3
    assert layers[0].keys.shape == layout.shape(4)
    layers[1].keys.fill_(1)
    assert not layers[0].keys.any()
    assert not layers[2].keys.any()


def test_a_pool_on_the_cpu_takes_memory_only_where_it_is_written() -> None:
    import psutil

    layout = KVLayout(block_size=16, num_kv_heads=8, head_size=128, dtype=KVType.F32)
    before = psutil.Process().memory_info().rss
    layers = allocate_kv(layout, num_layers=2, num_blocks=2048, device=CPU)
    assert layers[0].keys.nbytes * 4 == 512 * MIB
    assert psutil.Process().memory_info().rss - before < 64 * MIB


def test_sizes_are_binary() -> None:
    sizes = [human_size(n) for n in (0, 1023, 1024, 3 * MIB // 2, 98 * GIB)]
    assert sizes == ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "98.0 GiB"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("order", KVOrder)
def test_a_block_is_copied_in_every_layer_with_its_scales_one_copy_after_the_other(
    dtype: torch.dtype, order: KVOrder
) -> None:
    layout = KVLayout(block_size=7, num_kv_heads=3, head_size=6, dtype=KVType.of(dtype), order=order)
    layers = allocate_kv(layout, num_layers=2, num_blocks=4, device=CPU)
    for number, layer in enumerate(layers):
        for pages in (layer.keys, layer.values, layer.key_scales, layer.value_scales):
            for block in range(4 if pages is not None else 0):
                pages[block] = 10 * number + block
    pairs = [(1, 3), (3, 0), (2, 1)]  # a target that is the next source, and a source that becomes a target
    copy_blocks(layers, [BlockCopy(source=BlockId(s), target=BlockId(t)) for s, t in pairs])
    for number, layer in enumerate(layers):
        for pages in (layer.keys, layer.values, layer.key_scales, layer.value_scales):
            if pages is not None:
                found = [pages[block].unique().tolist() for block in range(4)]
                assert found == [[10 * number + block] for block in (1, 2, 2, 1)]
