"""Loading the native library and turning its statuses into exceptions."""

import ctypes
from pathlib import Path

from kernels.cpu.abi import ABI_VERSION, declare


class NativeError(Exception):
    """The library refused a call; the message names the value and the limit."""


class NativeUnsupported(NativeError):
    """A shape, level or layout that this library or machine does not run: choose another backend."""


class NativeLibrary:
    """The loaded library. Raises NativeError where it is not one of ours or of another version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.functions = ctypes.CDLL(str(path))
        try:
            version = int(self.functions.acpu_abi_version())
        except AttributeError as problem:
            raise NativeError(f"{path} is not the native CPU library") from problem
        if version != ABI_VERSION:
            raise NativeError(
                f"{path} has interface {version}; this version needs {ABI_VERSION}: build it again"
            )
        declare(self.functions)

    @property
    def levels(self) -> tuple[str, ...]:
        """Instruction-set levels that this machine runs, best first; the last is always `portable`."""
        return tuple(self.functions.acpu_levels().decode().split())

    def check(self, status: int) -> None:
        """Raises NativeError, or NativeUnsupported, with the library's own words, unless `status` is 0."""
        if status:
            message = self.functions.acpu_last_error().decode()
            raise NativeUnsupported(message) if status == 2 else NativeError(message)


def load_library(path: Path) -> NativeLibrary:
    """The library at `path`. Raises NativeError, or OSError where it cannot be loaded."""
    return NativeLibrary(path)
