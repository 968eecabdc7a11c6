"""Stands in for CUDA graphs on a CPU: records operations with their tensors and replays those, not Python.

What a device's kernels read from memory is read again at each replay; what Python decided stays as recorded.
After each replay what it computed on the way is filled with NaN, as another graph in the same memory would.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from appliance.runtime.graph_capture import Replay
from kernels.kv_layout import LayerKV
from kernels.ops import AttentionParams, Ops, RaggedQueries
from kernels.tables import reference_ops

aten = torch.ops.aten
_WAITS = (
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.nonzero.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
)
# With a mask for an index the size of the result is the device's to say.
_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


class CaptureError(RuntimeError):
    """A step does what no CUDA graph can."""


def _tensors(values: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@dataclass
class Tape:
    """Operations in order, and the tensors that came to be between them."""

    calls: list[tuple[Callable[..., Any], tuple, dict, object]] = field(default_factory=list)
    pointers: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    intermediates: list[torch.Tensor] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def note(self, function: Callable[..., Any], args: tuple, kwargs: dict, result: object) -> None:
        for tensor in _tensors((args, kwargs)):
            self._seen.add(tensor.untyped_storage().data_ptr())
            self.pointers.append((tensor, tensor.data_ptr()))
        for tensor in _tensors(result):
            if tensor.untyped_storage().data_ptr() not in self._seen and tensor.is_floating_point():
                self.intermediates.append(tensor)
            self._seen.add(tensor.untyped_storage().data_ptr())
        self.calls.append((function, args, kwargs, result))

    @torch.inference_mode()
    def replay(self) -> None:
        for tensor, pointer in self.pointers:
            if tensor.data_ptr() != pointer:
                raise CaptureError("a recorded tensor lies elsewhere now")
        for function, args, kwargs, result in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        for tensor in self.intermediates:
            tensor.fill_(float("nan"))


class _Recording(TorchDispatchMode):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_masked = func in _INDEXING and any(t.dtype is torch.bool for t in _tensors(args[1]))
        if func in _WAITS or is_masked:
            raise CaptureError(f"a recorded step waits for the device: {func}")
        result = func(*args, **(kwargs or {}))
        self._tape.note(func, args, kwargs or {}, result)
        return result


class Recorder:
    """Implements GraphCapture. `num_replays` counts by the order of recording."""

    def __init__(self) -> None:
        self._tape: Tape | None = None
        self.num_replays: list[int] = []

    def capture(self, step: Callable[[], None]) -> Replay:
        tape = Tape()
        self._tape = tape
        try:
            with _Recording(tape):
                step()
        finally:
            self._tape = None
        index = len(self.num_replays)
        self.num_replays.append(0)

        def run() -> None:
            self.num_replays[index] += 1
            tape.replay()

        return Replay(run)

    def ops(self) -> Ops:
        """The references; those that look at a tensor's content are one recorded call, as a kernel is."""
        plain = reference_ops()

        def attention(
            query: torch.Tensor, layer: LayerKV, ragged: RaggedQueries, params: AttentionParams
        ) -> torch.Tensor:
            def kernel(query: torch.Tensor, starts: torch.Tensor, lens: torch.Tensor, tables: torch.Tensor):
                known = replace(
                    ragged,
                    host_query_starts=tuple(starts.tolist()),
                    host_context_lens=tuple(lens.tolist()),
                    block_tables=tables,
                )
                return plain.attention(query, layer, known, params)

            return self._call(kernel, query, ragged.query_starts, ragged.context_lens, ragged.block_tables)

        return replace(
            plain,
            attention=attention,
            write_kv=lambda k, v, slots, layer: self._call(
                lambda *tensors: plain.write_kv(*tensors, layer), k, v, slots
            ),
            rope_write_kv=lambda *given: self._call(
                lambda *tensors: plain.rope_write_kv(*tensors, given[-1]), *given[:-1]
            ),
        )

    def _call(self, kernel: Callable[..., Any], *tensors: torch.Tensor) -> Any:
        if self._tape is None:
            return kernel(*tensors)
        with torch.utils._python_dispatch._disable_current_modes():
            result = kernel(*tensors)
        self._tape.note(kernel, tensors, {}, result)
        return result
