"""What the system and NVIDIA's driver say of the cards, and who holds their memory. Judges nothing."""

import ast
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_PCI = Path("/sys/bus/pci/devices")
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card. `holders` are other processes' shares as the driver tells them, the largest first."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int
    holders: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """`num_on_bus` counts NVIDIA's cards, driver or not; None where the system does not tell."""

    num_on_bus: int | None
    has_module: bool = False
    driver_problem: str | None = None
    driver_version: str = ""
    driver_cuda: tuple[int, int] | None = None  # the newest CUDA that the driver serves
    torch_cuda: tuple[int, int] | None = None  # the CUDA that PyTorch was built for; None: without
    cards: tuple[Card, ...] = ()


def read_gpu_facts(*, module_name: str = "pynvml", pci: Path = _PCI) -> GpuFacts:
    """Ask the bus, then the driver. Never fails: what cannot be told is left out."""
    num_on_bus, torch_cuda = _count_on_bus(pci), _torch_cuda()
    try:
        nvml: Any = importlib.import_module(module_name)  # an untyped module, present on some machines only
    except ImportError:
        return GpuFacts(num_on_bus=num_on_bus, torch_cuda=torch_cuda)
    try:
        nvml.nvmlInit()
        number = int(nvml.nvmlSystemGetCudaDriverVersion())
        return GpuFacts(
            num_on_bus=num_on_bus,
            has_module=True,
            driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
            driver_cuda=(number // 1000, number % 1000 // 10),
            torch_cuda=torch_cuda,
            cards=tuple(_card(nvml, index) for index in range(nvml.nvmlDeviceGetCount())),
        )
    except nvml.NVMLError as error:
        return GpuFacts(
            num_on_bus=num_on_bus, has_module=True, driver_problem=str(error), torch_cuda=torch_cuda
        )


def _card(nvml: Any, index: int) -> Card:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:  # not told in some containers
        processes = []
    held = [(_process_name(int(p.pid)), int(p.usedGpuMemory or 0)) for p in processes]
    return Card(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        holders=tuple(sorted(held, key=lambda holder: -holder[1])),
    )


def _process_name(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return f"process {pid}"


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _count_on_bus(pci: Path) -> int | None:
    if not pci.is_dir():
        return None
    return sum(
        _read(device / "vendor") == _NVIDIA_VENDOR and _read(device / "class").startswith(_DISPLAY_CLASS)
        for device in pci.iterdir()
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _torch_cuda() -> tuple[int, int] | None:
    """Read from PyTorch's version file: importing it would take seconds."""
    spec = importlib.util.find_spec("torch")
    folder = next(iter(spec.submodule_search_locations or ()), None) if spec else None
    text = _read(Path(folder) / "version.py") if folder else ""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.split(":")[0].strip() == "cuda" and "'" in value:
            major, _, minor = str(ast.literal_eval(value.strip())).partition(".")
            return int(major), int(minor or 0)
    return None
