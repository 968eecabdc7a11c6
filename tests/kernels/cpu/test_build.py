"""Building, loading, and the library under the sanitizers and for other machines."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels.cpu.build import SOURCE_FOLDER, BuildError, Compiler, Target, build, find_compiler, this_machine
from kernels.cpu.library import NativeError, NativeLibrary

TESTS = Path(__file__).parent


def test_levels_end_with_the_portable_one(library: NativeLibrary):
    assert library.levels[-1] == "portable"
    assert len(set(library.levels)) == len(library.levels)


def test_a_library_that_is_there_is_not_built_again(library: NativeLibrary):
    before = library.path.stat()
    assert build(library.path.parent) == library.path
    after = library.path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_failing_compiler_is_quoted_and_leaves_nothing_behind(tmp_path: Path):
    broken = Compiler((sys.executable, "-c", "raise SystemExit('nothing to see')"))
    with pytest.raises(BuildError, match="nothing to see"):
        build(tmp_path, compiler=broken)
    assert list(tmp_path.iterdir()) == []


def test_without_any_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("kernels.cpu.build.find_spec", lambda _: None)
    with pytest.raises(BuildError, match="pip install ziglang"):
        find_compiler()


def test_other_libraries_are_refused(library: NativeLibrary):
    import _ctypes

    with pytest.raises(NativeError, match="is not the native CPU library"):
        NativeLibrary(Path(_ctypes.__file__))


def test_idle_threads_use_no_processor_time(library: NativeLibrary, rig):
    network = rig.network(rig.shape())
    with network.native(library, num_threads=4, spin_us=100) as model:
        model.bind_kv(rig.pages(network.shape, 1))
        model.step(rig.batch([([1, 2, 3], 0, [0])]))
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.4)
        assert time.process_time() - before < 0.1


@pytest.mark.slow
def test_sanitizers_are_silent(tmp_path: Path):
    """Every other test here, on a library that stops at the first bad access or undefined operation."""
    compiler = find_compiler()
    sanitized = build(tmp_path, compiler=compiler, sanitizes=True)
    runtimes = [
        subprocess.run(
            [*compiler.command, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        )
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = dict(
        os.environ,
        LD_PRELOAD=" ".join(result.stdout.strip() for result in runtimes),
        ASAN_OPTIONS="detect_leaks=0",
        APPLIANCE_TEST_NATIVE_LIBRARY=str(sanitized),
    )
    files = [str(path) for path in sorted(TESTS.glob("test_*.py")) if path.name != Path(__file__).name]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:faulthandler",
        "-p",
        "no:cacheprovider",
        *files,
    ]
    result = subprocess.run(
        command, env=environment, cwd=TESTS.parents[2], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert "runtime error" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_zig_builds_for_both_architectures(tmp_path: Path, architecture: str):
    zig = Compiler((sys.executable, "-m", "ziglang", "c++"), is_zig=True)
    target = Target(architecture=architecture, system="linux")
    path = build(tmp_path, compiler=zig, target=target)
    header = path.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert header[18] == {"x86_64": 0x3E, "aarch64": 0xB7}[architecture]
    if target == this_machine():
        assert NativeLibrary(path).levels[-1] == "portable"


@pytest.mark.slow
def test_arm_levels_agree_with_the_portable_one(tmp_path: Path):
    """Compiled for 64-bit Arm everywhere; run where there is an emulator for it, or on such a machine."""
    program = tmp_path / "levels_agree"
    sources = [path for path in sorted(SOURCE_FOLDER.glob("*.cpp")) if "avx" not in path.name]
    target = ["-target", "aarch64-linux-musl", "-mcpu=generic+dotprod", "-static"]
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-fno-sanitize=undefined", "-I", str(SOURCE_FOLDER)]
    files = [str(path) for path in (*sources, TESTS / "levels_agree.cpp")]
    command = [sys.executable, "-m", "ziglang", "c++", *target, *flags, *files, "-o", str(program)]
    subprocess.run(command, check=True)
    assert program.read_bytes()[18] == 0xB7
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator:
        result = subprocess.run(
            [emulator, "-cpu", "max", str(program)], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout
        assert "neon" in result.stdout
