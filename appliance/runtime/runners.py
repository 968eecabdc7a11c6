"""Chooses the Runner of a backend. Imports torch only for one that runs on it."""

from typing import TYPE_CHECKING

from appliance.runtime.cpu import CpuBackend
from appliance.runtime.native_runner import NativeRunner

if TYPE_CHECKING:
    from appliance.runtime.backend import Backend
    from appliance.runtime.runner import ModelRunner


def make_runner(backend: "Backend") -> "NativeRunner | ModelRunner":
    """Return what runs batches on this backend."""
    if isinstance(backend, CpuBackend):
        return NativeRunner(backend)
    from appliance.runtime.runner import ModelRunner

    return ModelRunner(backend)
