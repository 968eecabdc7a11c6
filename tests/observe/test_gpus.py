"""GPU facts with the library absent, without a driver, and as it answers where there is a GPU."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from appliance.observe.gpus import GpuMonitor, GpuReading


class NVMLError(Exception):
    pass


def library(*, has_driver: bool = True, tells_heat: bool = True) -> ModuleType:
    """The part of NVIDIA's module that is used, for a machine with one GPU."""
    module = ModuleType("stand_in_nvml")

    def init() -> None:
        if not has_driver:
            raise NVMLError("driver not loaded")

    def temperature(handle: str, kind: int) -> int:
        if not tells_heat:
            raise NVMLError("not supported")
        return 61

    module.NVMLError = NVMLError
    module.NVML_TEMPERATURE_GPU = 0
    module.nvmlInit = init
    module.nvmlDeviceGetCount = lambda: 1
    module.nvmlDeviceGetHandleByIndex = lambda index: f"handle {index}"
    module.nvmlDeviceGetName = lambda _: b"GPU X"
    module.nvmlDeviceGetMemoryInfo = lambda _: SimpleNamespace(used=100, total=1000)
    module.nvmlDeviceGetUtilizationRates = lambda _: SimpleNamespace(gpu=42)
    module.nvmlDeviceGetTemperature = temperature
    return module


def test_without_the_library_there_is_no_gpu() -> None:
    monitor = GpuMonitor(module_name="no_such_module_here")
    assert monitor.read() == monitor.read() == ()


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stand_in_nvml", library(has_driver=False))
    assert GpuMonitor(module_name="stand_in_nvml").read() == ()


@pytest.mark.parametrize("tells_heat", [True, False])
def test_what_the_driver_tells_is_read(monkeypatch: pytest.MonkeyPatch, tells_heat: bool) -> None:
    monkeypatch.setitem(sys.modules, "stand_in_nvml", library(tells_heat=tells_heat))
    assert GpuMonitor(module_name="stand_in_nvml").read() == (
        GpuReading(
            name="GPU X",
            memory_used_bytes=100,
            memory_total_bytes=1000,
            utilization_percent=42.0,
            temperature_c=61.0 if tells_heat else None,
        ),
    )


def test_the_real_library_never_fails() -> None:
    assert isinstance(GpuMonitor().read(), tuple)
