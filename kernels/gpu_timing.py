"""Times launches on a real GPU: the forms that ship, on tensors of their shapes. Chooses nothing."""

import time
from dataclasses import replace

import torch
import triton

from kernels.gpu_launch import KernelCall
from kernels.gpu_shipped import shipped_calls
from kernels.launch import Launch

_REPEATS = 7
# Starts between two readings of the clock: a launch from Python then hides behind the one before.
_BURST = 20


def real_calls() -> list[KernelCall]:
    """Return the shipped launches with memory behind each tensor. Integers are 0: page 0, row 0, slot 0.

    Sequence starts and context lengths are rebuilt, since an empty context would time nothing.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    return [replace(call, arguments=_real(call.arguments, device)) for call in shipped_calls()]


def measure(call: KernelCall, numbers: Launch) -> float | None:
    """Return the median seconds of a start after warming up; None where these numbers do not fit the GPU."""
    try:
        for _ in range(3):
            call.start(numbers)
        torch.cuda.synchronize()
    except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError):
        return None
    times = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(_BURST):
            call.start(numbers)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / _BURST)
    return sorted(times)[_REPEATS // 2]


def zeros_laid_out_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return zeros with this tensor's strides, in as much memory as it is a view of."""
    num_elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    zeros = torch.zeros(num_elements, dtype=tensor.dtype, device=device)
    return zeros.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _real(arguments: dict[str, object], device: torch.device) -> dict[str, object]:
    real = {
        name: zeros_laid_out_like(value, device) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    starts, lens, table = (real.get(f"{name}_ptr") for name in ("starts", "lens", "tables"))
    query = real.get("query_ptr")
    if isinstance(starts, torch.Tensor):
        num_sequences = len(starts) - 1
        num_tokens = len(query) if isinstance(query, torch.Tensor) else num_sequences
        starts.copy_(torch.arange(num_sequences + 1) * (num_tokens // num_sequences))
    if isinstance(lens, torch.Tensor) and isinstance(table, torch.Tensor):
        lens.fill_(16 * table.shape[1])
    return real
