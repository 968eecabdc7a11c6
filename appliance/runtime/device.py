"""Which device a model runs on, found without torch where there can be no GPU. Knows no model."""

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# What a driver brings: NVIDIA's library, AMD's device.
_NVIDIA_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_AMD_DEVICE = Path("/dev/kfd")


class Device(Protocol):
    """A `torch.device`, or CPU, which needs no torch. As text it is what torch calls it."""

    @property
    def type(self) -> str: ...


@dataclass(frozen=True, slots=True)
class MainMemory:
    """The processor, for who has not imported torch."""

    type: str = "cpu"

    def __str__(self) -> str:
        return self.type


CPU = MainMemory()


def select_device(wanted: str) -> Device:
    """Return the device of that name. Raises BadSetting when there is none.

    Imports torch only where a GPU is named, or this machine has a driver for one.
    """
    if wanted == "cpu" or (wanted == "auto" and not has_gpu_driver()):
        return CPU
    from appliance.runtime.precision import torch_device

    return torch_device(wanted)


def has_gpu_driver() -> bool:
    """Whether torch is worth asking for a GPU."""
    if sys.platform == "darwin":
        return False
    try:
        ctypes.CDLL(_NVIDIA_LIBRARY)
    except OSError:
        return _AMD_DEVICE.exists()
    return True
