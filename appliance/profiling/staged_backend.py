"""A step of a backend in the stages that a profile times, native or on tensors. Knows no scheduler."""

from typing import Protocol

import torch

from appliance.engine.batch import Batch, ScheduledSequence, SequenceOutput
from appliance.model.decoder import ForwardInputs, ForwardOutputs
from appliance.runtime.backend import Backend
from appliance.runtime.cpu import CpuBackend
from appliance.runtime.inputs import build_inputs
from appliance.runtime.native_sampler import sample_natively
from appliance.runtime.native_step import NativeOutputs, NativeStep, build_step
from appliance.runtime.sampler import sample


class StagedBackend(Protocol):
    """What a runner does with a batch, one stage a call, in this order."""

    @property
    def block_size(self) -> int: ...

    def prepare(self, batch: Batch) -> None:
        """Build the step's inputs."""

    def compute(self) -> None:
        """Run the forward pass to its end."""

    def sample(self) -> list[SequenceOutput]:
        """Choose a token for each sequence that wants one."""


def staged(backend: Backend) -> StagedBackend:
    """Return the stages of this backend."""
    return _Native(backend) if isinstance(backend, CpuBackend) else _Tensors(backend)


def _sampled(batch: Batch) -> tuple[ScheduledSequence, ...]:
    return tuple(s for s in batch.sequences if s.sampling is not None)


class _Native:
    _step: NativeStep
    _outputs: NativeOutputs
    _sequences: tuple[ScheduledSequence, ...]

    def __init__(self, backend: CpuBackend) -> None:
        self._backend = backend

    @property
    def block_size(self) -> int:
        return self._backend.kv_layout.block_size

    def prepare(self, batch: Batch) -> None:
        self._sequences = _sampled(batch)
        self._step = build_step(batch.sequences, block_size=self.block_size)
        self._backend.copy_blocks(batch.block_copies)

    def compute(self) -> None:
        self._outputs = self._backend.step(self._step)

    def sample(self) -> list[SequenceOutput]:
        return sample_natively(self._backend, self._outputs, self._sequences)


class _Tensors:
    _inputs: ForwardInputs
    _outputs: ForwardOutputs
    _sequences: tuple[ScheduledSequence, ...]

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def block_size(self) -> int:
        return self._backend.kv_layout.block_size

    def prepare(self, batch: Batch) -> None:
        self._sequences = _sampled(batch)
        self._inputs = build_inputs(batch, block_size=self.block_size)
        self._backend.copy_blocks(batch.block_copies)

    @torch.inference_mode()
    def compute(self) -> None:
        self._outputs = self._backend.forward(self._inputs)
        if self._backend.device.type == "cuda":
            torch.cuda.synchronize()

    @torch.inference_mode()
    def sample(self) -> list[SequenceOutput]:
        return sample(self._outputs, self._sequences)
