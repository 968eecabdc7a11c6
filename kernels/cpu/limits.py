"""Measures what this machine can do at best, with a small program compiled here. Standard library only."""

import json
import subprocess
from pathlib import Path

from kernels.cpu.build import BuildError, find_compiler

READ_GB_S = "read bandwidth, GB/s"
PRODUCTS_GOP_S = "8-bit operations, GOP/s"
_SOURCE = Path(__file__).with_name("limits.cpp")


def measure_limits(folder: Path, threads: int) -> dict[str, float]:
    """Read bandwidth, and the rate of 8-bit products where there are instructions for them.

    Raises BuildError where there is no compiler or it fails.
    """
    program = folder / "limits"
    if not program.is_file() or program.stat().st_mtime < _SOURCE.stat().st_mtime:
        compiler = find_compiler()
        native = "-mcpu=native" if compiler.is_zig else "-march=native"
        flags = ("-O3", native, "-std=c++17", "-pthread", "-o", str(program))
        _run([*compiler.command, *flags, str(_SOURCE)])
    done = _run([str(program), str(threads)])
    found = json.loads(done)
    limits = {READ_GB_S: found["read_gb_s"]}
    if found["int8_gop_s"] is not None:
        limits[PRODUCTS_GOP_S] = found["int8_gop_s"]
    return limits


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # ours
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(command)}\n{error.stderr.strip()}") from error
    return done.stdout
