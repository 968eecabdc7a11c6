"""Measures what this machine can do at best, with a small library: shipped, else compiled here.

Standard library only.
"""

import ctypes
import hashlib
import subprocess
from pathlib import Path

from kernels.cpu.build import BuildError, Compiler, Target, find_compiler, this_machine

READ_GB_S = "read bandwidth, GB/s"
PRODUCTS_GOP_S = "8-bit operations, GOP/s"
LIMITS_NAME = "libappliance_limits"
_SOURCE = Path(__file__).with_name("limits.cpp")


def measure_limits(folder: Path, threads: int) -> dict[str, float]:
    """Read bandwidth, and the rate of 8-bit products where there are instructions for them.

    The library is the one in `folder`, or is built there. Raises BuildError where there is none and no
    compiler, or it fails; OSError where it cannot be loaded or there is no memory to measure with.
    """
    library = folder / (LIMITS_NAME + this_machine().suffix)
    if not library.is_file():
        library = _built(folder)
    read_gb_s, products_gop_s = ctypes.c_double(), ctypes.c_double()
    measure = ctypes.CDLL(str(library)).appliance_limits
    measure.restype = None
    measure(threads, ctypes.byref(read_gb_s), ctypes.byref(products_gop_s))
    if not read_gb_s.value:
        raise OSError("there is no memory free to measure with; 512 MiB are needed")
    limits = {READ_GB_S: read_gb_s.value}
    if products_gop_s.value >= 0:
        limits[PRODUCTS_GOP_S] = products_gop_s.value
    return limits


def _built(folder: Path) -> Path:
    """A library named by its source, which may change between versions."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = folder / f"{LIMITS_NAME}-{digest}{this_machine().suffix}"
    if not library.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        build_limits(library)
    return library


def build_limits(library: Path, *, compiler: Compiler | None = None, target: Target | None = None) -> None:
    """Compile the library to that file, whole or not at all. Raises BuildError."""
    compiler, target = compiler or find_compiler(), target or this_machine()
    flags = ["-O3", "-std=c++17", "-shared", "-fvisibility=hidden", "-s"]
    if target.system != "windows":
        flags += ["-fPIC", "-pthread"]
    if compiler.is_zig:
        base = "x86_64" if target.architecture == "x86_64" else "generic"
        flags += ["-target", target.zig_triple, f"-mcpu={base}", "-fno-sanitize=undefined"]
    unfinished = library.with_suffix(".partial")
    _run([*compiler.command, *flags, "-o", str(unfinished), str(_SOURCE)])
    unfinished.replace(library)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # ours
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(command)}\n{error.stderr.strip()}") from error
