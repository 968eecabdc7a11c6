"""A library that looks for a package of our `kernels`' name still imports, and takes nothing from ours."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_bitsandbytes_imports_beside_our_package() -> None:
    code = "import kernels, bitsandbytes; print(bitsandbytes.__version__, kernels.__file__)"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(ROOT / "kernels") in done.stdout
