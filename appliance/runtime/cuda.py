"""The GPU backend: the decoder over Triton kernels, decode steps as CUDA graphs. Knows no queue.

What records steps, and the device, come with the constructor: the same code runs on a CPU with a recorder.
"""

import math
from collections.abc import Callable, Sequence

import torch

from appliance.engine.batch import BlockCopy, HostCopy
from appliance.errors import NotEnoughMemory
from appliance.model.config import ModelConfig
from appliance.model.decoder import Decoder, DecoderWeights, ForwardInputs, ForwardOutputs
from appliance.runtime.batch_sampler import choose_rows
from appliance.runtime.decode_buffers import DecodeBuffers
from appliance.runtime.decode_graphs import DecodeGraphs
from appliance.runtime.graph_capture import GraphCapture
from appliance.runtime.host_pages import HostPages
from appliance.runtime.kv_cache import allocate_kv
from appliance.runtime.on_device import sent, to_device
from appliance.runtime.rehearsal import largest_prompt
from appliance.runtime.row_rules import RowRules
from kernels.kv_layout import KVLayout, KVOrder, KVType, LayerKV
from kernels.ops import Ops

BLOCK_SIZE = 16
# Prompts of a rehearsal share these: what they write is nobody's.
_REHEARSAL_BLOCKS = 2


class CudaBackend:
    """Runs one model's steps. `new_capture` makes what records them, once per KV pool; None records nothing.

    A mixture of experts asks the host which experts a step chose, so its steps are not recorded.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        ops: Ops,
        layout: KVLayout,
        *,
        max_sequences: int,
        context_length: int,
        new_capture: Callable[[], GraphCapture] | None,
    ) -> None:
        self._config = config
        self._decoder = Decoder(config, weights, ops)
        self._ops = ops
        self._layout = layout
        self._device = weights.embedding.device
        self._hidden_dtype = weights.embedding.dtype
        self._max_sequences = max_sequences
        self._context_length = context_length
        self._new_capture = None if config.experts is not None else new_capture
        self._pages: tuple[LayerKV, ...] = ()
        self._host: HostPages | None = None
        self._graphs: DecodeGraphs | None = None

    @property
    def kv_layout(self) -> KVLayout:
        return self._layout

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def records_steps(self) -> bool:
        return self._new_capture is not None

    @property
    def has_graphs(self) -> bool:
        return self._graphs is not None

    @torch.inference_mode()
    def attach_kv(self, num_blocks: int, layout: KVLayout | None = None) -> None:
        """Allocate the pool and record the decode steps over it.

        Raises NotEnoughMemory where it does not fit, after all.
        """
        try:
            self._attach(num_blocks, layout)
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemory(
                f"the GPU has less memory left than a moment ago, too little for a KV pool of {num_blocks} "
                "blocks; close the programs that took it, or lower --kv-memory"
            ) from error

    def _attach(self, num_blocks: int, layout: KVLayout | None = None) -> None:
        self.detach_kv()
        self._layout = layout or self._layout
        self._pages = allocate_kv(
            self._layout, num_layers=self._config.num_layers, num_blocks=num_blocks, device=self._device
        )
        if self._new_capture is not None:
            buffers = DecodeBuffers(
                self._config,
                max_sequences=self._max_sequences,
                max_blocks=-(-self._context_length // self._layout.block_size),
                hidden_dtype=self._hidden_dtype,
                device=self._device,
            )
            self._graphs = DecodeGraphs(self._run, buffers, self._new_capture())

    def detach_kv(self) -> None:
        """Give the pool and the recordings back."""
        self._graphs, self._pages, self._host = None, (), None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def rehearse(self, *, step_tokens: int, free_bytes: Callable[[], int]) -> int:
        """Run the largest prompt and record every decode step on a small pool; return the bytes that took.

        These are what the real pool must leave. The pool is given back.
        """
        before = free_bytes()
        self._attach(_REHEARSAL_BLOCKS)
        self.run_largest(step_tokens)
        pool_bytes = (
            self._layout.token_bytes * self._layout.block_size * self._config.num_layers * _REHEARSAL_BLOCKS
        )
        taken = before - free_bytes() - pool_bytes
        self.detach_kv()
        return max(taken, 0)

    @torch.inference_mode()
    def run_largest(self, step_tokens: int) -> None:
        """Run the largest prompt and choose by the widest rules. Writes into block 0."""
        outputs = self.forward(
            largest_prompt(
                num_tokens=step_tokens,
                context_length=self._context_length,
                max_sequences=self._max_sequences,
                block_size=self._layout.block_size,
            )
        )
        assert outputs.logits is not None
        widest = RowRules(is_greedy=False, top_p=0.9, number=0.5)
        choose_rows(outputs.logits, [widest] * len(outputs.logits))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @torch.inference_mode()
    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for group in independent_copies(copies):
            sources = to_device([copy.source for copy in group], torch.int64, self._device)
            targets = to_device([copy.target for copy in group], torch.int64, self._device)
            for layer in self._pages:
                self._ops.copy_blocks(sources, targets, layer)

    @torch.inference_mode()
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
        outputs = None if self._graphs is None else self._graphs.run(inputs)
        return outputs or self._run(sent(inputs, self._device))

    @torch.inference_mode()
    def follow(self, inputs: ForwardInputs, token_ids: torch.Tensor) -> ForwardOutputs | None:
        return None if self._graphs is None else self._graphs.run(inputs, token_ids)

    def _run(self, inputs: ForwardInputs) -> ForwardOutputs:
        return self._decoder.forward(inputs, self._pages)


def independent_copies(copies: Sequence[BlockCopy]) -> list[list[BlockCopy]]:
    """Cut copies, done one after the other, into groups that may be done at once, in order."""
    groups: list[list[BlockCopy]] = []
    touched: set[int] = set()
    read: set[int] = set()
    for copy in copies:
        # A target must not be read or written by its group, nor a source be written by it.
        if not groups or copy.source in touched or copy.target in touched or copy.target in read:
            groups.append([])
            touched, read = set(), set()
        groups[-1].append(copy)
        touched.add(copy.target)
        read.add(copy.source)
    return groups


def cuda_kv_layout(config: ModelConfig, dtype: torch.dtype) -> KVLayout:
    """Pages of 16 tokens, a head's tokens together: what the kernels that ship are compiled for."""
    return KVLayout(
        block_size=BLOCK_SIZE,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        dtype=KVType.of(dtype),
        order=KVOrder.BKSD,
    )


def least_reserve(total_bytes: int) -> int:
    """What the pool leaves free of a card for the allocator's slack: a fiftieth, but at least 384 MiB."""
    return max(384 * 2**20, math.ceil(total_bytes / 50))
