"""Records a step once and runs it again without Python: CUDA graphs. Knows neither models nor batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded step. It reads and writes the tensors it was recorded with, wherever those lie."""

    run: Step


class GraphCapture(Protocol):
    """Records steps that share one device's memory for what they compute on the way.

    A recorded step may be run only while no other one runs, and what it computed lasts until the next.
    """

    def capture(self, step: Step) -> Replay:
        """Record a step, running it at least once. It must not wait for the device."""


class CudaGraphCapture:
    """CUDA graphs in one memory pool: capture the largest first, and the others fit into its memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # torch has a private type for it
        # One for all: what a stream's steps allocated is kept for that stream alone.
        self._aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, step: Step) -> Replay:
        self._run_aside(step)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": what other threads do on the device meanwhile, such as read its memory, is theirs.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        self._pool = self._pool or graph.pool()
        return Replay(graph.replay)

    def _run_aside(self, step: Step) -> None:
        """Compile kernels and allocate libraries' workspaces, neither of which may happen while capturing."""
        current = torch.cuda.current_stream(self._device)
        self._aside.wait_stream(current)
        with torch.cuda.stream(self._aside):
            step()
        current.wait_stream(self._aside)
        torch.cuda.synchronize(self._device)
