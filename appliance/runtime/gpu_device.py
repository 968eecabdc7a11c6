"""What GPU there is, and in one sentence why it cannot be used. Starts no work on it."""

import importlib.util
from dataclasses import dataclass

import torch

from appliance.runtime.device import has_gpu_driver
from kernels.launch import OLDEST_ARCHITECTURE

_NAMES = {80: "8.0 (Ampere)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What torch and the driver say. `architecture` is 90 for compute capability 9.0."""

    is_cuda_build: bool
    has_triton: bool
    has_driver: bool = True
    driver_error: str = ""
    name: str = ""
    architecture: int = 0
    free_bytes: int = 0
    total_bytes: int = 0


def read_gpu(device: torch.device) -> GpuFacts:
    """Ask torch and the driver about a CUDA device, or about the first where `device` is another's."""
    has_triton = importlib.util.find_spec("triton") is not None
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return GpuFacts(is_cuda_build=False, has_triton=has_triton, has_driver=has_gpu_driver())
    index = (device.index or 0) if device.type == "cuda" else 0
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        properties = torch.cuda.get_device_properties(index)
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    except (RuntimeError, AssertionError) as error:
        return GpuFacts(is_cuda_build=True, has_triton=has_triton, driver_error=str(error) or "no answer")
    return GpuFacts(
        is_cuda_build=True,
        has_triton=has_triton,
        name=properties.name,
        architecture=10 * properties.major + properties.minor,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
    )


def why_no_gpu(facts: GpuFacts) -> str | None:
    """Say what keeps the GPU backend from running, and what would mend it; None where nothing does."""
    if not facts.has_driver:
        return "no NVIDIA driver is installed, and PyTorch is built without CUDA; a GPU needs both"
    if not facts.is_cuda_build:
        return (
            "this PyTorch is built without CUDA; install PyTorch's CUDA build (pytorch.org names its index)"
        )
    if facts.driver_error:
        return _driver_trouble(facts.driver_error)
    if facts.architecture < OLDEST_ARCHITECTURE:
        capability = f"{facts.architecture // 10}.{facts.architecture % 10}"
        return (
            f"the {facts.name} has compute capability {capability} and the GPU backend needs "
            f"{_NAMES[OLDEST_ARCHITECTURE]} or newer"
        )
    if not facts.has_triton:
        return "the package triton is not installed; install the extra 'cuda'"
    return None


def _driver_trouble(error: str) -> str:
    lowered = error.lower()
    if "no nvidia driver" in lowered or "driver shared library" in lowered:
        return "no NVIDIA driver is installed; install one and restart the machine"
    if "too old" in lowered or "insufficient" in lowered:
        return f"the NVIDIA driver is too old for this PyTorch; update it ({_first_line(error)})"
    if "no cuda gpus" in lowered or "no cuda-capable device" in lowered:
        return "the NVIDIA driver sees no GPU; check that it is plugged in, powered, and visible here"
    if "out of memory" in lowered:
        return "other programs hold all of the GPU's memory; close them, then try again"
    return f"the NVIDIA driver does not answer ({_first_line(error)}); restart the machine"


def _first_line(error: str) -> str:
    return error.strip().splitlines()[0].rstrip(".")
