"""Compiles the launcher with the `ziglang` wheel: static on Linux, and for other systems from any of them.

zstd comes as the one source file that the source distribution of the `zstandard` package holds, by digest.
"""

import hashlib
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

SOURCES = Path(__file__).parent / "launcher"
# The source distributions whose zstd was looked at; another version of the package needs a line here.
ZSTD_DIGESTS = {"0.25.0": "7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b"}
TRIPLES = {
    ("linux", "x86_64"): "x86_64-linux-musl",
    ("linux", "aarch64"): "aarch64-linux-musl",
    ("win32", "amd64"): "x86_64-windows-gnu",
    ("darwin", "x86_64"): "x86_64-macos",
    ("darwin", "arm64"): "aarch64-macos",
}


def fetch_zstd(folder: Path) -> Path:
    """The folder with zstd.c and zstd.h, fetched and unpacked once. Raises ValueError for another digest."""
    wanted = version("zstandard")
    sources = folder / f"zstandard-{wanted}" / "zstd"
    if not (sources / "zstd.c").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _run(
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            "zstandard",
            "-d",
            folder,
            f"zstandard=={wanted}",
        )
        archive = folder / f"zstandard-{wanted}.tar.gz"
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if ZSTD_DIGESTS.get(wanted) != digest:
            raise ValueError(f"{archive} has sha256 {digest}; known are {ZSTD_DIGESTS}")
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
    return sources


def build_launcher(output: Path, *, zstd: Path, triple: str) -> Path:
    """Compile the launcher for one of `TRIPLES`. Raises CalledProcessError."""
    output.parent.mkdir(parents=True, exist_ok=True)
    system = "windows" if "windows" in triple else "posix"
    objects = output.parent / f"zstd-{triple}.o"
    flags = ["-target", triple, "-O2", "-DZSTD_DISABLE_ASM", "-I", zstd]
    if not objects.is_file():
        _run("-m", "ziglang", "cc", *flags, "-c", zstd / "zstd.c", "-o", objects)
    files = [SOURCES / name for name in ("launcher.c", "unpack.c", f"platform_{system}.c")]
    linking = ["-static", "-s"] if "musl" in triple else ["-lshell32"] if system == "windows" else []
    _run(
        "-m", "ziglang", "cc", *flags, "-Wall", "-Wextra", "-Werror", *files, objects, *linking, "-o", output
    )
    return output


def _run(*arguments: object) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True)  # noqa: S603  (the command is ours)
