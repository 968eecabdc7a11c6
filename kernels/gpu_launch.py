"""How a launcher starts its kernel: with the table's numbers, or as a record for who compiles or tunes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.runtime.jit import KernelInterface

from kernels.launch import Launch, architecture_of, find_launch, launch_key
from kernels.launch_table import LAUNCH_TABLE

Constants = dict[str, object]

# Triton warns where this is unset, since a later version changes its default. Products are meant to be fused.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
_TRITON_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def keep_compiled_in(folder: Path) -> None:
    """Keep compiled kernels there, so that a later start compiles none."""
    triton.knobs.cache.dir = str(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """One launch: all but the numbers is fixed. `grid` and `constants` follow from the numbers."""

    kernel: KernelInterface[object]
    variant: str
    grid: Callable[[Launch], tuple[int, ...]]
    arguments: dict[str, object]
    constants: Callable[[Launch], Constants]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def key(self) -> str:
        return launch_key(self.name, self.variant)

    def start(self, numbers: Launch) -> None:
        self.kernel[self.grid(numbers)](
            **self.arguments,
            **self.constants(numbers),
            num_warps=numbers.num_warps,
            num_stages=numbers.num_stages,
        )


_record: ContextVar[list[KernelCall] | None] = ContextVar(
    "kernel calls to record instead of starting", default=None
)


@contextmanager
def recorded_calls() -> Iterator[list[KernelCall]]:
    """Within it, launchers record their calls and start nothing; their results are left as allocated."""
    calls: list[KernelCall] = []
    token = _record.set(calls)
    try:
        yield calls
    finally:
        _record.reset(token)


def start(call: KernelCall, device: torch.device) -> None:
    """Start a call with the table's numbers for this device, or record it."""
    record = _record.get()
    if record is not None:
        record.append(call)
    else:
        call.start(find_launch(LAUNCH_TABLE, call.key, architecture_of(device)))


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """Return the type in which a kernel multiplies tiles of this type.

    The interpreter multiplies the raw bits of bf16, so there it is float32.
    """
    return tl.float32 if IS_INTERPRETED and dtype is torch.bfloat16 else _TRITON_TYPES[dtype]


def next_power_of_two(n: int) -> int:
    """Return the least power of two that is not below n: tiles have no other sizes."""
    return 1 << max(n - 1, 0).bit_length()
