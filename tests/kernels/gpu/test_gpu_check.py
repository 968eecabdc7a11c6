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

from benchmarks.gpu.bars import verdicts
from benchmarks.gpu.check import GpuCheck
from benchmarks.gpu.kernel_checks import check_kernels
from benchmarks.gpu.plain_torch import PlainLlama
from benchmarks.gpu.plan import tiny_plan
from benchmarks.gpu.random_llama import random_weights
from benchmarks.gpu.steps import compiled_rows
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
        ("attention", "ours"),
        ("decode", "ours"),
        ("prefill", "ours"),
        ("engine", "ours"),
        ("decode", "plain torch"),
        ("prefill", "plain torch"),
    }
    assert {row["by"].split(", ")[1] for row in found["steps"]} == {"bf16", "int8", "int4"}
    assert found["requests"]["num_finished"] == 12
    assert found["left_out"].keys() == {"nf4", "llm.int8", "compiled torch"}, "their libraries are not there"
    assert {text for _, _, text in found["bars"].values()} == {"not measured"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")
def test_without_a_card_it_says_so_in_one_line(tmp_path: Path) -> None:
    done = check("--json", str(tmp_path / "none.json"))
    assert done.returncode == 2
    assert done.stderr.startswith("there is nothing to check: ")
    assert not (tmp_path / "none.json").exists()


def row(what: str, by: str, batch: int, context: int, **found: float) -> dict[str, object]:
    return {"what": what, "by": by, "batch": batch, "context": context, **found}


def test_promises_are_judged_by_the_rows_of_one_run() -> None:
    rows = [
        row("decode", "ours, bf16, graphs on", 1, 512, ms=4.0, share_of_copy=0.9),
        row("decode", "ours, bf16, graphs off", 1, 512, ms=6.0),
        row("decode", "ours, int8, graphs on", 1, 512, ms=2.0, share_of_copy=0.7),
        row("decode", "ours, int8, graphs off", 1, 512, ms=2.4),
        row("decode", "ours, bf16, graphs on", 64, 512, ms=6.0, tokens_per_s=10_666.0),
        row("decode", "ours, int8, graphs on", 64, 512, ms=6.6, tokens_per_s=9_697.0),
        row("attention", "ours, bf16", 1, 4096, ms=1.0, share_of_matmul=0.55),
    ]
    found = {v.promise: (v.found, v.text) for v in verdicts(rows)}
    assert list(found.values()) == [
        (0.7, "miss"),
        (0.9, "pass"),
        (pytest.approx(1.2), "miss"),
        (2.0, "pass"),
        (pytest.approx(6.0 / 6.6), "miss"),
        (0.55, "pass"),
        (10_666.0, "pass"),
    ]


def test_a_section_that_fails_costs_no_other_and_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("an illegal address\nand more")

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried")

    monkeypatch.setattr("benchmarks.gpu.check.plain_rows", broken)
    monkeypatch.setattr("benchmarks.gpu.check.run_requests", full)
    plan = replace(tiny_plan(), precisions=("bf16",), library_precisions=())
    check = GpuCheck(plan, reference_ops(), tmp_path / "found.json")
    check.run()
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert any("an illegal address" in problem for problem in found["problems"])
    assert found["left_out"]["requests"].startswith("does not fit on this card: CUDA out of memory")
    assert any(row["what"] == "engine" for row in found["steps"])


def test_compiled_layers_give_the_tokens_of_plain_ones() -> None:
    plan = tiny_plan()
    weights = random_weights(plan.config, "bf16", plan.dtype, plan.device)
    token_ids = torch.tensor([3, 50, 99])
    found = []
    for compiler in (None, plan.compiler):
        plain = PlainLlama(plan.config, weights, compiler=compiler)
        plain.allocate(3, 20)
        found.append(plain.decode(token_ids).tolist())
    assert found[0] == found[1]
    assert len(set(found[0])) > 1
    (compiled,) = compiled_rows(plan, weights, 1e9)
    assert compiled["by"] == "compiled torch, bf16, graphs off"


def test_a_wrong_operation_is_named() -> None:
    plain = reference_ops()
    wrong = replace(
        plain, gated_silu=lambda x: plain.gated_silu(x) * 1.001, embed=lambda i, t: t[i] * torch.nan
    )
    bad = {check.name.split(" ")[0] for check in check_kernels(tiny_plan(), wrong) if not check.is_good}
    assert bad == {"gated_silu", "embed"}
