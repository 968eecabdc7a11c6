"""Runs prompt chunks some layers at a time, and keeps what goes from one time to the next. Knows no queue."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from appliance.engine.batch import PromptSlice
from appliance.runtime.native_step import NativeOutputs, NativeStep, build_step
from kernels.kv_layout import KVLayout


@runtime_checkable
class LayeredBackend(Protocol):
    """A backend that can leave off between two layers, run other steps, and go on."""

    @property
    def kv_layout(self) -> KVLayout: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    def step_layers(
        self, step: NativeStep, layers: range, between: NDArray[np.float32]
    ) -> NativeOutputs | None:
        """Run some of the layers in order; with the last ones come the outputs.

        `between` (T, H) takes what goes into the next layer, and is given again with it.
        """


class LayerSlices:
    """The chunks under way on one backend: at most one set of them at a time."""

    def __init__(self, backend: LayeredBackend) -> None:
        self._backend = backend
        self._step: NativeStep | None = None
        self._between = np.empty((0, 0), np.float32)

    def run(self, piece: PromptSlice) -> NativeOutputs | None:
        """Compute a slice, which follows on the one before or is the first. Outputs come with the last."""
        if piece.is_first:
            self._step = build_step(piece.sequences, block_size=self._backend.kv_layout.block_size)
            num_tokens = self._step.batch.tokens.size
            self._between = np.empty((num_tokens, self._backend.hidden_size), np.float32)
        assert self._step is not None, "a slice before the first"
        layers = range(piece.first_layer, piece.end_layer)
        return self._backend.step_layers(self._step, layers, self._between)
