"""Memory for KV pages."""

import re
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from kernels.cpu import pages
from kernels.cpu.pages import PagesAhead, allocate_pages
from kernels.kv_layout import KVLayout, KVOrder, KVType


def layout_of(dtype: KVType, block_size: int = 16, head_size: int = 16) -> KVLayout:
    return KVLayout(
        block_size=block_size, num_kv_heads=3, head_size=head_size, dtype=dtype, order=KVOrder.BKSD
    )


@pytest.mark.parametrize("dtype", [KVType.BF16, KVType.INT8])
def test_pages_are_zero_apart_and_of_the_layouts_shape(dtype: KVType):
    layout = layout_of(dtype)
    layers = allocate_pages(layout, 5, 2)
    assert all(array.shape == layout.shape(5) for layer in layers for array in (layer.keys, layer.values))
    arrays = [array for layer in layers for array in layer.arrays()]
    assert len(arrays) == (8 if dtype is KVType.INT8 else 4)
    assert all(block.flags.c_contiguous for array in arrays for block in array)
    assert all(block.ctypes.data % 64 == 0 for array in arrays for block in array)
    assert not any(array.any() for array in arrays)
    for i, array in enumerate(arrays):
        array.fill(i + 1)
    assert [np.unique(array).tolist() for array in arrays] == [[i + 1] for i in range(len(arrays))]
    assert layers[0].keys.ctypes.data % (2 << 20) == 0


@pytest.mark.parametrize("dtype", [KVType.BF16, KVType.INT8])
def test_the_first_blocks_of_all_layers_lie_together(dtype: KVType):
    """So that a pool that fills has memory cleared for it a little at a time."""
    layers = allocate_pages(layout_of(dtype), 100, 7)
    block_bytes = layers[0].keys[0].nbytes
    starts = [part[0].ctypes.data for layer in layers for part in (layer.keys, layer.values)]
    assert max(starts) - min(starts) == 13 * block_bytes
    assert layers[3].keys[1].ctypes.data - layers[3].keys[0].ctypes.data == 14 * block_bytes


def test_elements_that_the_library_does_not_read_are_refused():
    with pytest.raises(KeyError, match="float32"):
        allocate_pages(layout_of(KVType.F32), 1, 1)


def test_a_pool_far_larger_than_its_use_costs_no_memory():
    before = psutil.Process().memory_info().rss
    layers = allocate_pages(layout_of(KVType.BF16, block_size=64, head_size=64), 1 << 11, 21)  # 2 GiB
    layers[-1].values[-1].fill(1)
    assert layers[-1].values[-1].sum() == layers[-1].values[-1].size
    assert psutil.Process().memory_info().rss - before < 64 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for memory")
def test_memory_is_there_some_way_ahead_of_the_blocks_in_use_and_no_further():
    layers = allocate_pages(layout_of(KVType.BF16, block_size=64, head_size=64), 1 << 9, 21)  # 528 MB
    before = psutil.Process().memory_info().rss
    ahead = PagesAhead(layers)
    for block in (0, 3, 30, 2):
        ahead.reach(block)
    wait_for_threads()
    grown = psutil.Process().memory_info().rss - before
    assert 90 << 20 < grown < 110 << 20  # 31 blocks of a MiB, and 64 MiB
    assert 95 <= ahead.num_blocks < 100
    assert 0 < ahead.block_s < 1
    layers[-1].values[90].fill(1)
    assert psutil.Process().memory_info().rss - before - grown < 3 << 20
    ahead.reach((1 << 9) - 1)
    wait_for_threads()
    assert psutil.Process().memory_info().rss - before < 540 << 20
    assert ahead.num_blocks >= 1 << 9
    assert not layers[0].keys.any()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for memory")
def test_memory_that_is_not_asked_for_counts_as_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pages, "_POPULATE_WRITE", 0x7FFF)  # as a system that knows no such request
    ahead = PagesAhead(allocate_pages(layout_of(KVType.BF16), 100, 1))
    assert ahead.num_blocks == 0
    ahead.reach(0)
    wait_for_threads()
    assert ahead.num_blocks >= 100


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for memory")
def test_what_a_step_wrote_first_does_not_count_as_quick():
    layers = allocate_pages(layout_of(KVType.BF16, block_size=64, head_size=64), 1 << 8, 21)
    ahead = PagesAhead(layers)
    ahead.reach(0)
    wait_for_threads()
    before_s = ahead.block_s
    for layer in layers:
        for array in layer.arrays():
            array.fill(1)
    ahead.reach((1 << 8) - 1)
    wait_for_threads()
    assert ahead.num_blocks >= 1 << 8
    assert ahead.block_s == before_s


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "kv-pages":
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")
def test_what_users_wrote_is_in_a_mapping_of_its_own_that_no_core_dump_holds():
    layout = layout_of(KVType.BF16, block_size=64, head_size=64)
    (layer,) = allocate_pages(layout, 1 << 8, 1)
    address = layer.keys.ctypes.data
    table = Path("/proc/self/smaps").read_text(encoding="utf-8")
    mappings = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags: (.*?)$", table, re.MULTILINE | re.DOTALL)
    ((start, end, flags),) = [m for m in mappings if int(m[0], 16) <= address < int(m[1], 16)]
    assert "dd" in flags.split()
    assert int(end, 16) - int(start, 16) < layer.keys.nbytes + layer.values.nbytes + (4 << 20)
