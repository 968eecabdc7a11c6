"""Memory for KV pages."""

import psutil
import pytest
import torch

from kernels.cpu.pages import allocate_pages
from kernels.kv_layout import KVLayout, KVOrder


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_pages_are_zero_apart_and_of_the_layouts_shape(dtype: torch.dtype):
    layout = KVLayout(block_size=16, num_kv_heads=3, head_size=16, dtype=dtype, order=KVOrder.BKSD)
    layers = allocate_pages(layout, 5, 2)
    tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
    assert all(tensor.shape == layout.shape(5) and tensor.is_contiguous() for tensor in tensors)
    for i, tensor in enumerate(tensors):
        tensor.fill_(i + 1)
    assert [tensor.unique().tolist() for tensor in tensors] == [[1], [2], [3], [4]]
    assert layers[0].keys.data_ptr() % (2 << 20) == 0
    assert all((layer.key_scales is None) == (dtype != torch.int8) for layer in layers)


def test_a_pool_far_larger_than_its_use_costs_no_memory():
    layout = KVLayout(block_size=64, num_kv_heads=4, head_size=64, dtype=torch.bfloat16, order=KVOrder.BKSD)
    before = psutil.Process().memory_info().rss
    layers = allocate_pages(layout, 1 << 11, 16)  # 2 GiB
    layers[-1].values[-1].fill_(1.0)
    assert layers[-1].values[-1].sum() == layers[-1].values[-1].numel()
    assert psutil.Process().memory_info().rss - before < 64 << 20
