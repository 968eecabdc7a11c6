"""Places in main memory for blocks of a pool on a device, and the copies there and back. Knows no queue."""

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from appliance.engine.batch import HostCopy
from appliance.engine.sequence import BlockId
from kernels.kv_layout import LayerKV

_NUM_TIMED = 4


@runtime_checkable
class SwappingBackend(Protocol):
    """A backend whose blocks can wait in main memory, because its pool is elsewhere."""

    def attach_host(self, num_places: int) -> float:
        """Allocate places beside the attached pool; return the seconds that one block takes there or back."""

    def swap_blocks(self, saves: Sequence[HostCopy], restores: Sequence[HostCopy]) -> None:
        """Copy blocks out, then in, before the forward pass that follows."""


class HostPages:
    """`num_places` blocks of every layer, in pinned memory where the pool is on a card.

    All copies are queued on the device's current stream, in order with the steps around them: nobody waits,
    and the host reads none of it.
    """

    def __init__(self, layers: Sequence[LayerKV], num_places: int) -> None:
        self._pairs = [
            (pages, _host_like(pages, num_places)) for layer in layers for pages in _tensors(layer)
        ]
        self.num_places = num_places

    def save(self, copies: Sequence[HostCopy]) -> None:
        for pages, host in self._pairs:
            for copy in copies:
                host[copy.place].copy_(pages[copy.block], non_blocking=True)

    def restore(self, copies: Sequence[HostCopy]) -> None:
        for pages, host in self._pairs:
            for copy in copies:
                pages[copy.block].copy_(host[copy.place], non_blocking=True)

    def block_s(self) -> float:
        """Seconds that one block takes there or back. Fills a few places with what the first blocks hold."""
        num_timed = min(_NUM_TIMED, self.num_places, len(self._pairs[0][0]))
        copies = [HostCopy(block=BlockId(i), place=i) for i in range(num_timed)]
        self.save(copies)  # the first time is slower: memory is mapped, engines wake
        self._wait()
        started_s = time.perf_counter()
        self.save(copies)
        self.restore(copies)
        self._wait()
        return (time.perf_counter() - started_s) / (2 * num_timed)

    def _wait(self) -> None:
        device = self._pairs[0][0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _tensors(layer: LayerKV) -> list[torch.Tensor]:
    parts = (layer.keys, layer.values, layer.key_scales, layer.value_scales)
    return [part for part in parts if part is not None]


def _host_like(pages: torch.Tensor, num_places: int) -> torch.Tensor:
    shape = (num_places, *pages.shape[1:])
    return torch.empty(shape, dtype=pages.dtype, pin_memory=pages.device.type == "cuda")
