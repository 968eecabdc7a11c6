"""Runs prompt chunks some layers at a time, and keeps what goes from one time to the next. Knows no queue."""

from typing import Protocol, runtime_checkable

import torch

from appliance.engine.batch import Batch, PromptSlice
from appliance.model.decoder import ForwardInputs, ForwardOutputs
from appliance.runtime.inputs import build_inputs
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

    def forward_layers(
        self, inputs: ForwardInputs, layers: range, between: torch.Tensor
    ) -> ForwardOutputs | None:
        """Run some of the layers in order; with the last ones come the outputs.

        `between` float32 (T, H) takes what goes into the next layer, and is given again with it.
        """


class LayerSlices:
    """The chunks under way on one backend: at most one set of them at a time."""

    def __init__(self, backend: LayeredBackend) -> None:
        self._backend = backend
        self._inputs: ForwardInputs | None = None
        self._between = torch.empty(0)

    def run(self, piece: PromptSlice) -> ForwardOutputs | None:
        """Compute a slice, which follows on the one before or is the first. Outputs come with the last."""
        if piece.is_first:
            block_size = self._backend.kv_layout.block_size
            self._inputs = build_inputs(
                Batch(sequences=piece.sequences), block_size=block_size, device=torch.device("cpu")
            )
            self._between = torch.empty(len(self._inputs.token_ids), self._backend.hidden_size)
        assert self._inputs is not None, "a slice before the first"
        layers = range(piece.first_layer, piece.end_layer)
        return self._backend.forward_layers(self._inputs, layers, self._between)
