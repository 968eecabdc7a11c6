"""How forward passes run on a device: the protocol, and the plain torch backend."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from appliance.engine.batch import BlockCopy, HostCopy
from appliance.model.config import ModelConfig
from appliance.model.decoder import Decoder, DecoderWeights, ForwardInputs, ForwardOutputs
from appliance.runtime.device import Device
from appliance.runtime.host_pages import HostPages
from appliance.runtime.kv_cache import allocate_kv, copy_blocks
from kernels.kv_layout import KVLayout, KVType, LayerKV
from kernels.ops import Ops


class Backend(Protocol):
    """Runs one model's forward passes. The KV pool is attached once, after the weights are loaded."""

    @property
    def kv_layout(self) -> KVLayout: ...

    @property
    def device(self) -> Device: ...

    def attach_kv(self, num_blocks: int, layout: KVLayout | None = None) -> None:
        """Allocate the pool, in `kv_layout` or one that differs from it in block size or element type."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks in every layer, one after the other, before the forward pass that follows."""

    def forward(self, inputs: ForwardInputs) -> ForwardOutputs:
        """Start a step given in main memory. Outputs may be overwritten by the next one's."""


@runtime_checkable
class LeadingBackend(Protocol):
    """A backend whose `forward` returns at once, so that a step can be started behind the one that runs."""

    @property
    def has_graphs(self) -> bool:
        """Whether there are steps that can be started that way."""

    def follow(self, inputs: ForwardInputs, token_ids: torch.Tensor) -> ForwardOutputs | None:
        """Start a step whose new tokens, int64 (T), are on the device; None where that takes the host."""


class EagerBackend:
    """Plain torch on any device; the reference every other backend is compared with."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Ops, layout: KVLayout) -> None:
        self._config = config
        self._decoder = Decoder(config, weights, ops)
        self._layout = layout
        self._device = weights.embedding.device
        self._pages: tuple[LayerKV, ...] = ()
        self._host: HostPages | None = None

    @property
    def kv_layout(self) -> KVLayout:
        return self._layout

    @property
    def device(self) -> torch.device:
        return self._device

    def attach_kv(self, num_blocks: int, layout: KVLayout | None = None) -> None:
        self._layout = layout or self._layout
        self._pages = allocate_kv(
            self._layout, num_layers=self._config.num_layers, num_blocks=num_blocks, device=self._device
        )

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        copy_blocks(self._pages, copies)

    def attach_host(self, num_places: int) -> float:
        self._host = HostPages(self._pages, num_places)
        return self._host.block_s()

    @torch.inference_mode()
    def swap_blocks(self, saves: Sequence[HostCopy], restores: Sequence[HostCopy]) -> None:
        assert self._host is not None, "no places were attached"
        self._host.save(saves)
        self._host.restore(restores)

    @torch.inference_mode()
    def forward(self, inputs: ForwardInputs) -> ForwardOutputs:
        return self._decoder.forward(inputs.to(self._device), self._pages)


def eager_kv_layout(config: ModelConfig, dtype: torch.dtype) -> KVLayout:
    """The eager backend's pages: 16 tokens, a slot's heads together."""
    return KVLayout(
        block_size=16, num_kv_heads=config.num_kv_heads, head_size=config.head_size, dtype=KVType.of(dtype)
    )
