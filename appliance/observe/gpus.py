"""Reads GPU facts through NVIDIA's management library, where it and a driver are present. Never fails.

Knows no torch: memory is what the driver counts, every process included.
"""

import importlib
import logging
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU at one moment. None where the driver does not tell."""

    name: str
    memory_used_bytes: int
    memory_total_bytes: int
    utilization_percent: float | None
    temperature_c: float | None


class GpuMonitor:
    """Opens the library at the first read and keeps it open; without it every read is empty."""

    def __init__(self, *, module_name: str = "pynvml") -> None:
        self._module_name = module_name
        self._nvml: Any = None  # an untyped module, present on some machines only
        self._handles: list[Any] | None = None  # opaque to us

    def read(self) -> tuple[GpuReading, ...]:
        if self._handles is None:
            self._handles = self._open()
        readings = (self._read_one(handle) for handle in self._handles)
        return tuple(reading for reading in readings if reading is not None)

    def _open(self) -> list[Any]:
        try:
            self._nvml = importlib.import_module(self._module_name)
        except ImportError:
            return []
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            return [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except self._nvml.NVMLError as error:
            _log.info("no GPU facts: %s", error)
            return []

    def _read_one(self, handle: Any) -> GpuReading | None:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is None:
            return None
        name = self._ask(nvml.nvmlDeviceGetName, handle) or "GPU"
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        celsius = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        return GpuReading(
            name=name.decode() if isinstance(name, bytes) else name,
            memory_used_bytes=int(memory.used),
            memory_total_bytes=int(memory.total),
            utilization_percent=None if rates is None else float(rates.gpu),
            temperature_c=None if celsius is None else float(celsius),
        )

    def _ask(self, question: Any, *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None
