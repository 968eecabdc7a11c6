"""The native CPU engine's library, or a compiler to make it. Compiles nothing."""

import os
from collections.abc import Callable
from pathlib import Path

from appliance.observe.doctor.finding import Finding, passed, warned
from kernels.cpu.build import BuildError, Compiler, find_compiler
from kernels.cpu.library import NativeError, NativeLibrary, load_library

_SLOW = "the plain PyTorch backend serves instead, more slowly"


def check_compiler(*, is_frozen: bool, find: Callable[[], Compiler] = find_compiler) -> Finding:
    """Whether the engine could be made here."""
    if is_frozen:
        return passed("compiler", "none is needed: the packaged program brings its engine")
    try:
        return passed("compiler", " ".join(find().command))
    except BuildError as error:
        return warned("compiler", f"none: {_SLOW}", str(error).removeprefix("no C++ compiler: "))


def check_native_library(folder: Path, *, can_build: bool) -> Finding:
    """Whether a library is there that this version and this machine can load."""
    for path in sorted(folder.glob("libappliance_cpu*"), key=os.path.getmtime, reverse=True):
        library, problem = _try_load(path)
        if library is not None:
            return passed("native engine", f"{path.name} runs at level {library.levels[0]}")
        if not can_build:
            return warned("native engine", f"{problem}; {_SLOW}", "install the program again")
    if can_build:
        return passed("native engine", "it is compiled at the first start")
    return warned("native engine", f"no library in {folder}; {_SLOW}", "install a C++ compiler, see above")


def _try_load(path: Path) -> tuple[NativeLibrary | None, str]:
    try:
        return load_library(path), ""
    except (NativeError, OSError) as error:
        return None, str(error)
