"""Compiles `src` into one shared library with whatever C++ compiler there is. Standard library only.

The library is named by a hash of its sources, flags and compiler, and appears under its name only when whole,
so one folder may serve several versions and several processes that build at the same time.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SOURCE_FOLDER = Path(__file__).parent / "src"
COMMON = (
    "api", "api_ops", "arena", "check", "choice", "failure", "half", "model", "pack", "placement", "plan",
    "pool", "step", "step_attention", "step_experts", "step_products",
)  # fmt: skip

_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni")
# Features of each level's file. A level whose flags the compiler does not know is left out.
LEVELS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": {
        "portable": (),
        "avx2": _AVX2,
        "avx2_vnni": (*_AVX2, "avxvnni"),
        "avx512_vnni": _AVX512,
        "avx512": (*_AVX512, "avx512bf16"),
        "avx512_amx": (*_AVX512, "avx512bf16", "amx-tile", "amx-bf16", "amx-int8"),
    },
    "aarch64": {"portable": (), "neon": ("dotprod",)},
}


class BuildError(Exception):
    """No compiler, or one that failed; the message holds what it said."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that compiles C++, and whether it is zig, which spells processors and targets its own way."""

    command: tuple[str, ...]
    is_zig: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A machine to build for: `architecture` x86_64 or aarch64, `system` linux, darwin or windows."""

    architecture: str
    system: str

    @property
    def suffix(self) -> str:
        return {"darwin": ".dylib", "windows": ".dll"}.get(self.system, ".so")

    @property
    def zig_triple(self) -> str:
        # glibc 2.28 is what manylinux wheels of these years ask for.
        ending = {"linux": "linux-gnu.2.28", "darwin": "macos", "windows": "windows-gnu"}[self.system]
        return f"{self.architecture}-{ending}"


def this_machine() -> Target:
    """Raises BuildError where the processor is neither x86-64 nor 64-bit Arm."""
    names = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
    machine = platform.machine().lower()
    if machine not in names:
        raise BuildError(f"processor '{machine}' is not supported; x86_64 and aarch64 are")
    return Target(architecture=names[machine], system=platform.system().lower())


def find_compiler() -> Compiler:
    """CXX, else g++ or clang++, else the `ziglang` wheel. Raises BuildError where there is none."""
    named = os.environ.get("CXX")
    if named:
        return Compiler(tuple(named.split()))
    for name in ("g++", "clang++"):
        if found := shutil.which(name):
            return Compiler((found,))
    if find_spec("ziglang") is not None:
        return Compiler((sys.executable, "-m", "ziglang", "c++"), is_zig=True)
    raise BuildError("no C++ compiler: install g++ or clang++, or `pip install ziglang`")


def build(
    output_folder: Path,
    *,
    compiler: Compiler | None = None,
    target: Target | None = None,
    sanitizes: bool = False,
) -> Path:
    """The library for `target` in `output_folder`, built unless it is there already.

    `sanitizes` adds the address and undefined-behaviour sanitizers. Takes half a minute on two cores.
    Raises BuildError.
    """
    target = target or this_machine()
    job = _Build(compiler or find_compiler(), target, sanitizes)
    library = output_folder / f"libappliance_cpu-{job.key()}{target.suffix}"
    if not library.exists():
        output_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output_folder, prefix="build-") as folder:
            job.run(Path(folder), library)
    return library


@dataclass(frozen=True, slots=True)
class _Build:
    compiler: Compiler
    target: Target
    sanitizes: bool

    @property
    def levels(self) -> Mapping[str, tuple[str, ...]]:
        return LEVELS[self.target.architecture]

    def key(self) -> str:
        """Changes with anything that changes the library."""
        digest = hashlib.sha256()
        for path in sorted(SOURCE_FOLDER.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        digest.update(repr((self.compiler, self.target, self.sanitizes, LEVELS, self._flags("cpu"))).encode())
        return digest.hexdigest()[:16]

    def run(self, folder: Path, library: Path) -> None:
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            levels = list(pool.map(lambda name: self._try_compile(f"level_{name}", folder), self.levels))
            rest = list(pool.map(lambda name: self._compile(name, folder), COMMON))
        missing = [name for name, path in zip(self.levels, levels, strict=True) if path is None]
        if "portable" in missing:
            self._compile("level_portable", folder)  # says why
        without = [f"-DACPU_WITHOUT_{name.upper()}" for name in missing]
        rest.append(self._compile("cpu", folder, without))
        unfinished = folder / library.name
        self._call(
            [*self._link_flags(), "-o", str(unfinished), *(str(path) for path in [*levels, *rest] if path)]
        )
        unfinished.replace(library)

    def _try_compile(self, name: str, folder: Path) -> Path | None:
        try:
            return self._compile(name, folder)
        except BuildError:
            return None

    def _compile(self, name: str, folder: Path, extra: Sequence[str] = ()) -> Path:
        output = folder / f"{name}.o"
        self._call([*self._flags(name), *extra, "-c", str(SOURCE_FOLDER / f"{name}.cpp"), "-o", str(output)])
        return output

    def _flags(self, name: str) -> list[str]:
        # No contraction: a product and a sum must round alike in every tile size.
        flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
        if self.target.system != "windows":
            flags += ["-fPIC", "-pthread"]
        if self.sanitizes:
            flags += ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
            flags += ["-fno-sanitize-recover=undefined", "-DACPU_SANITIZES"]
        elif self.compiler.is_zig:
            flags += ["-fno-sanitize=undefined"]
        return flags + self._processor_flags(name)

    def _processor_flags(self, name: str) -> list[str]:
        features = self.levels.get(name.removeprefix("level_"), ())
        if self.compiler.is_zig:
            base = "x86_64" if self.target.architecture == "x86_64" else "generic"
            processor = "+".join([base, *(feature.replace("-", "_") for feature in features)])
            return ["-target", self.target.zig_triple, f"-mcpu={processor}"]
        if self.target.architecture == "aarch64":
            return [f"-march=armv8.2-a+{'+'.join(features)}"] if features else []
        return [f"-m{feature}" for feature in features]

    def _link_flags(self) -> list[str]:
        flags = ["-shared", *self._flags("cpu")]
        if not self.sanitizes:
            flags.append("-s")
        is_gnu = "g++" in Path(self.compiler.command[-1]).name and "clang" not in self.compiler.command[-1]
        if is_gnu and not self.sanitizes:
            flags += ["-static-libstdc++", "-static-libgcc"]  # the library must load on older systems
        return flags

    def _call(self, arguments: list[str]) -> None:
        command = [*self.compiler.command, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (the command is ours)
        if result.returncode:
            raise BuildError(f"{' '.join(command)}\n{result.stderr.strip()}")


def main() -> None:
    """Builds for this machine into the folder given, and says where the library is."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("output_folder", type=Path)
    sys.stdout.write(f"{build(parser.parse_args().output_folder)}\n")


if __name__ == "__main__":
    main()
