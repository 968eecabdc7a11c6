"""Measures what the machine can do at best, with a small program compiled here."""

import json
import subprocess
from pathlib import Path

from kernels.cpu.build import find_compiler

MACHINE = "the machine"
READ_GB_S = "read bandwidth, GB/s"
PRODUCTS_GOP_S = "8-bit operations, GOP/s"
_SOURCE = Path(__file__).with_name("limits.cpp")


def measure_limits(folder: Path, threads: int) -> dict[str, float]:
    """Read bandwidth, and the rate of 8-bit products where there is an instruction for them."""
    program = folder / "limits"
    if not program.is_file() or program.stat().st_mtime < _SOURCE.stat().st_mtime:
        compiler = find_compiler()
        native = "-mcpu=native" if compiler.is_zig else "-march=native"
        flags = ("-O3", native, "-std=c++17", "-pthread", "-o", str(program))
        subprocess.run([*compiler.command, *flags, str(_SOURCE)], check=True)
    done = subprocess.run([str(program), str(threads)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    limits = {READ_GB_S: found["read_gb_s"]}
    if found["int8_gop_s"] is not None:
        limits[PRODUCTS_GOP_S] = found["int8_gop_s"]
    return limits
