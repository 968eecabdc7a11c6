"""Compiles the GPU's kernels without a GPU, in a process of its own, and compares what they take of one."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.launch import ARCHITECTURES, OLDEST_ARCHITECTURE, Launch, find_launch
from kernels.launch_table import LAUNCH_TABLE

ROOT = Path(__file__).resolve().parents[3]
TABLE = json.loads((ROOT / "kernels" / "gpu_resources.json").read_text("utf-8"))

# argv: "architecture:first form:step" each. One line per form: what it takes, what is wrong with it.
COMPILE = """
import json, sys, triton
from kernels.gpu_compile import forms

shipped, found = {}, []
for part in sys.argv[1:]:
    architecture, first, step = map(int, part.split(":"))
    every = forms(architecture)
    shipped[architecture] = [form.name for form in every]
    for form in every[first::step]:
        r = form.compile()
        problems = r.problems(architecture, form.numbers.num_warps)
        found.append([architecture, form.name, r.registers, r.shared_bytes, problems])
print(json.dumps({"triton": triton.__version__, "shipped": shipped, "found": found}))
"""


def compile_parts(parts: list[str], cache: Path) -> dict:
    environment = os.environ | {"TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", COMPILE, *parts]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def check(compiled: dict) -> None:
    """No spills, all fits; the table has just what ships, with these numbers if this is its compiler."""
    assert [row for row in compiled["found"] if row[4]] == []
    assert compiled["found"]
    for architecture, names in compiled["shipped"].items():
        assert set(names) == TABLE[architecture].keys(), "run `python -m kernels.gpu_compile`"
    if compiled["triton"] in TABLE["triton"]:
        for architecture, name, registers, shared_bytes, _ in compiled["found"]:
            assert TABLE[str(architecture)][name] == [registers, shared_bytes], (architecture, name)


def test_a_share_of_what_ships_compiles_for_every_architecture_without_spills(tmp_path: Path) -> None:
    parts = [f"{architecture}:{index}:23" for index, architecture in enumerate(ARCHITECTURES)]
    check(compile_parts(parts, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_that_ships_compiles_without_spills(architecture: int, tmp_path: Path) -> None:
    check(compile_parts([f"{architecture}:0:1"], tmp_path))


KEEP = """
import json, sys
from pathlib import Path

import triton
from kernels.gpu_compile import forms
from kernels.gpu_launch import keep_compiled_in

keep_compiled_in(Path(sys.argv[1]))
hits = []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
for form in forms(90, ["select_rows_kernel", "gated_kernel"]):
    form.compile()
print(json.dumps(hits))
"""


def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "elsewhere")
    starts = []
    for _ in range(2):
        command = [sys.executable, "-c", KEEP, str(tmp_path / "kernels")]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        starts.append(json.loads(done.stdout))
    assert starts == [[False] * 6, [True] * 6]
    assert not (tmp_path / "elsewhere").exists()


def jitted_kernels() -> set[str]:
    """Every function named ..._kernel under @triton.jit in kernels/."""
    found = set()
    for path in (ROOT / "kernels").rglob("gpu*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list and node.name.endswith("_kernel"):
                found.add(node.name)
    return found


def test_every_kernel_has_launch_numbers_and_is_in_the_table_for_every_architecture() -> None:
    kernels = jitted_kernels()
    assert len(kernels) >= 11
    assert {key.split("/")[0] for key in LAUNCH_TABLE} == kernels
    assert TABLE.keys() - {"triton"} == {str(architecture) for architecture in ARCHITECTURES}
    for architecture in ARCHITECTURES:
        compiled = {name.split(" ")[0] for name in TABLE[str(architecture)]}
        assert compiled == set(LAUNCH_TABLE), architecture


def test_the_newest_architecture_that_a_gpu_reaches_wins() -> None:
    old, new = Launch(num_warps=4), Launch(num_warps=8)
    table = {"k/any": ((80, old), (90, new))}
    found = {a: find_launch(table, "k/any", a) for a in (80, 89, 90, 120)}
    assert found == {80: old, 89: old, 90: new, 120: new}
    assert all(
        min(numbers)[0] == OLDEST_ARCHITECTURE for numbers in LAUNCH_TABLE.values() if len(numbers) == 1
    )
