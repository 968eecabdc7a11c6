"""Installs the peers from the package index into environments of their own, once, below one folder."""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

LLAMA_CPP_PYTHON = "0.3.36"
OPENVINO_GENAI = "2026.4.1.0"
# Its products by the tile unit (AMX) end in a fault when they load the tiles' shapes: it goes without.
_WITHOUT_TILES = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" if platform.machine() == "x86_64" else ""
# The server alone; its web page would be fetched from elsewhere.
_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_NATIVE=ON",
    *(f"-DCMAKE_C_FLAGS={_WITHOUT_TILES}", f"-DCMAKE_CXX_FLAGS={_WITHOUT_TILES}"),
    *("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
    *("-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Where each peer's Python is, and what llama.cpp's build gave."""

    llama_python: Path
    llama_libraries: Path
    llama_server: Path
    openvino_python: Path


def install_peers(folder: Path) -> Peers:
    """Make every environment that is not there yet; llama.cpp takes about 8 CPU minutes to build."""
    folder.mkdir(parents=True, exist_ok=True)
    llama = folder / f"llama-cpp-python-{LLAMA_CPP_PYTHON}"
    openvino = folder / f"openvino-genai-{OPENVINO_GENAI}"
    if not (llama / "complete").is_file():
        _install_llama(llama)
    if not (openvino / "complete").is_file():
        print("installing openvino-genai", flush=True)
        _environment(openvino, f"openvino-genai=={OPENVINO_GENAI}")
        (openvino / "complete").touch()
    binaries = llama / "build" / "bin"
    return Peers(
        llama_python=_python(llama),
        llama_libraries=binaries,
        llama_server=binaries / "llama-server",
        openvino_python=_python(openvino),
    )


def _install_llama(folder: Path) -> None:
    """One native build of the sources in the package serves both its server and the Python package."""
    print("building llama.cpp from the sources of llama-cpp-python: about 8 CPU minutes", flush=True)
    _environment(folder)
    source = _unpack_source(folder)
    cmake = _tool(folder, "cmake")
    ninja = _tool(folder, "ninja")
    llama_cpp, build = source / "vendor" / "llama.cpp", folder / "build"
    make = f"-DCMAKE_MAKE_PROGRAM={ninja}"
    _run([cmake, "-S", llama_cpp, "-B", build, "-G", "Ninja", make, *_CMAKE_FLAGS])
    _run([cmake, "--build", build, "--target", "llama-server"])
    environment = {**os.environ, "CMAKE_ARGS": "-DLLAMA_BUILD=OFF"}
    _run([_python(folder), "-m", "pip", "install", "-q", source], environment)
    (folder / "complete").touch()


def _unpack_source(folder: Path) -> Path:
    source_option = "--no-binary=llama-cpp-python"
    wanted = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
    _run([_python(folder), "-m", "pip", "download", "-q", "--no-deps", source_option, "-d", folder, wanted])
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "source", filter="data")
    return next((folder / "source").iterdir())


def _environment(folder: Path, *packages: str) -> None:
    _run([sys.executable, "-m", "venv", folder])
    if packages:
        _run([_python(folder), "-m", "pip", "install", "-q", *packages])


def _tool(folder: Path, name: str) -> Path:
    """A build tool of this machine, else of the package index."""
    found = shutil.which(name)
    if found is None:
        _run([_python(folder), "-m", "pip", "install", "-q", name])
        return folder / "bin" / name
    return Path(found)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _run(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    subprocess.run([str(part) for part in command], env=environment, check=True)
