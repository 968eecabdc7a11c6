"""`make gpu-check` runs where there is only torch: its whole plan, as a dry run on the CPU."""

import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.kernel_checks import check_kernels
from benchmarks.gpu.plan import tiny_plan
from kernels.ops import Ops
from kernels.tables import reference_ops

ROOT = Path(__file__).resolve().parents[3]
# What a bare GPU machine lacks, and any use of the network.
BARE = """
import importlib.abc, runpy, socket, sys

import torch

BLOCKED = {
    "bitsandbytes", "filelock", "gguf", "httpx", "huggingface_hub", "jinja2", "litestar", "llguidance",
    "msgspec", "platformdirs", "psutil", "rich", "textual", "tokenizers", "tui", "uvicorn",
}
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not on this machine")
sys.meta_path.insert(0, Block())
def refuse(*args, **kwargs):
    raise OSError("no network here")
socket.socket.connect = refuse
runpy.run_module("benchmarks.gpu", run_name="__main__", alter_sys=True)
"""


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BARE, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_whole_plan_runs_with_nothing_but_torch(tmp_path: Path) -> None:
    target = tmp_path / "found.json"
    done = check("--tiny", "--json", str(target))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(target.read_text("utf-8"))
    assert found["problems"] == []
    checked = {re.split("[ ,]", name)[0] for name in found["kernels"]}
    assert {field.name for field in fields(Ops)} == checked, "an operation has no check in benchmarks/gpu"
    assert all(error < 1e-2 for error in found["kernels"].values())
    assert {(row["what"], row["by"].split(",")[0]) for row in found["steps"]} == {
        ("decode", "ours"),
        ("prefill", "ours"),
        ("decode", "plain torch"),
        ("prefill", "plain torch"),
    }
    assert {row["by"].split(", ")[1] for row in found["steps"]} == {"bf16", "int8", "int4"}
    assert found["requests"]["num_finished"] == 12


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")
def test_without_a_card_it_says_so_in_one_line(tmp_path: Path) -> None:
    done = check("--json", str(tmp_path / "none.json"))
    assert done.returncode == 2
    assert done.stderr.startswith("there is nothing to check: ")
    assert not (tmp_path / "none.json").exists()


def test_a_wrong_operation_is_named() -> None:
    plain = reference_ops()
    wrong = replace(
        plain, gated_silu=lambda x: plain.gated_silu(x) * 1.001, embed=lambda i, t: t[i] * torch.nan
    )
    bad = {check.name.split(" ")[0] for check in check_kernels(tiny_plan(), wrong) if not check.is_good}
    assert bad == {"gated_silu", "embed"}
