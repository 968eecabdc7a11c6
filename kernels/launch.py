"""The numbers a GPU kernel is launched with, by kernel, variant and GPU architecture. Knows no Triton."""

import functools
from dataclasses import dataclass

import torch

# Ampere: asynchronous copies and bf16 tensor cores. Before it, kernels spill, so there are none.
OLDEST_ARCHITECTURE = 80
ARCHITECTURES = (80, 86, 89, 90, 100, 120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Warps of a program, stages of a loop's pipeline, and tile sizes; a kernel uses those it names."""

    num_warps: int
    num_stages: int = 1
    block_m: int = 0  # tokens or query rows
    block_n: int = 0  # output channels, keys or elements
    block_k: int = 0  # inputs summed per turn


# By kernel and variant: (least architecture, numbers); the highest that a GPU reaches wins.
LaunchTable = dict[str, tuple[tuple[int, Launch], ...]]


def launch_key(kernel: str, variant: str) -> str:
    return f"{kernel}/{variant}"


def find_launch(table: LaunchTable, key: str, architecture: int) -> Launch:
    """Return the numbers of the newest architecture in the table that is not above this one."""
    return max((item for item in table[key] if item[0] <= architecture), key=lambda item: item[0])[1]


def architecture_of(device: torch.device) -> int:
    """Return 90 for compute capability 9.0; where there is no GPU (interpreter, compiler) the oldest."""
    return _capability(device.index) if device.type == "cuda" else OLDEST_ARCHITECTURE


def num_processors_of(device: torch.device) -> int:
    """Return the GPU's streaming multiprocessors.

    For tensors without memory (a compiler's) a large GPU's, for the interpreter's 4, so that tests split too.
    """
    if device.type == "meta":
        return 132
    return _num_processors(device.index) if device.type == "cuda" else 4


@functools.cache
def _capability(index: int | None) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


@functools.cache
def _num_processors(index: int | None) -> int:
    return int(
        torch.cuda.get_device_properties(
            torch.cuda.current_device() if index is None else index
        ).multi_processor_count
    )
