"""Runs the GPU's kernels under Triton's interpreter, in a process of its own, and asks what ran."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from kernels.ops import Ops

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent


def run_interpreted(marker: str, notes: Path) -> set[str]:
    """Run the tests in interpreted/ that have the marker; return the operations that they called."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", marker, str(HERE / "interpreted")]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OPERATIONS_THAT_RAN": str(notes)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return set(json.loads(notes.read_text(encoding="utf-8")))


def test_every_operation_equals_its_reference_under_the_interpreter(tmp_path: Path) -> None:
    ran = run_interpreted("not slow", tmp_path / "ran.json")
    assert ran == {field.name for field in fields(Ops)}, "an operation has no test in interpreted/"


@pytest.mark.slow
def test_the_whole_grid_of_shapes_under_the_interpreter(tmp_path: Path) -> None:
    assert "attention" in run_interpreted("slow", tmp_path / "ran.json")
