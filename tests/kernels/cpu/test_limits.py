"""The machine's limits: measured by a shipped library without a compiler, else by one that is built once."""

import shutil
from pathlib import Path

import pytest

from kernels.cpu.build import BuildError, this_machine
from kernels.cpu.limits import LIMITS_NAME, READ_GB_S, build_limits, measure_limits


def test_a_shipped_library_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build_limits(tmp_path / (LIMITS_NAME + this_machine().suffix))
    monkeypatch.setenv("CXX", "false")
    found = measure_limits(tmp_path, 1)
    # Slower than any memory that runs this, and faster than any: a unit that is wrong shows.
    assert 0.1 < found[READ_GB_S] < 10_000
    assert all(value > 0 for value in found.values())
    assert [path.name for path in tmp_path.iterdir()] == [LIMITS_NAME + this_machine().suffix]


def test_a_compiler_that_fails_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", shutil.which("false") or "false")
    with pytest.raises(BuildError):
        measure_limits(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []
