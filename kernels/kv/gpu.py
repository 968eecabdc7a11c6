"""Copying KV pages on a GPU, for copy-on-write. Contract: Ops.copy_blocks."""

import torch
import triton
import triton.language as tl

from kernels.gpu_launch import KernelCall, start
from kernels.kv_layout import LayerKV


@triton.jit
def copy_blocks_kernel(pages_ptr, sources_ptr, targets_ptr, page_size, BLOCK_N: tl.constexpr):
    pair = tl.program_id(0)
    element = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = element < page_size
    source = tl.load(sources_ptr + pair).to(tl.int64) * page_size
    target = tl.load(targets_ptr + pair).to(tl.int64) * page_size
    tl.store(pages_ptr + target + element, tl.load(pages_ptr + source + element, mask=inside), mask=inside)


def copy_blocks(sources_C: torch.Tensor, targets_C: torch.Tensor, layer: LayerKV) -> None:
    if len(sources_C) == 0:
        return
    for pages in (layer.keys, layer.values, layer.key_scales, layer.value_scales):
        if pages is not None:
            _copy(pages, sources_C, targets_C)


def _copy(pages: torch.Tensor, sources_C: torch.Tensor, targets_C: torch.Tensor) -> None:
    assert pages.is_contiguous()
    page_size = pages[0].numel()
    call = KernelCall(
        kernel=copy_blocks_kernel,
        variant="any",
        grid=lambda numbers: (len(sources_C), triton.cdiv(page_size, numbers.block_n)),
        arguments={
            "pages_ptr": pages,
            "sources_ptr": sources_C,
            "targets_ptr": targets_C,
            "page_size": page_size,
        },
        constants=lambda numbers: {"BLOCK_N": numbers.block_n},
    )
    start(call, pages.device)
