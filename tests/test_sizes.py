"""Sizes, names and first lines: the part of the style that can be counted."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("appliance", "kernels", "tui")
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 50
SHAPELESS_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
# "path" or "path:function", and why it may be longer: kernels, wire schemas and tables only.
EXEMPTIONS: dict[str, str] = {
    "kernels/attention/gpu_decode.py:attention_decode_kernel": "one kernel, a line per argument",
    "kernels/attention/gpu_prefill.py:attention_prefill_kernel": "one kernel, a line per argument",
    "kernels/rope_kv/gpu.py:rope_write_kv_kernel": "one kernel, a line per argument",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def num_lines(source: str) -> int:
    return len(source.splitlines())


def long_functions(source: str) -> list[str]:
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function))
    return [f.name for f in functions if (f.end_lineno or f.lineno) - f.lineno + 1 > MOST_LINES_OF_A_FUNCTION]


ALL_FILES = python_files(*PRODUCT, "packaging", "benchmarks", "tests")
PRODUCT_FILES = python_files(*PRODUCT)


def test_files_are_short() -> None:
    sizes = {name_of(path): num_lines(path.read_text("utf-8")) for path in ALL_FILES}
    long = {name: size for name, size in sizes.items() if size > MOST_LINES_OF_A_FILE}
    assert long.keys() - EXEMPTIONS.keys() == set(), long


def test_functions_are_short() -> None:
    long = {f"{name_of(path)}:{f}" for path in ALL_FILES for f in long_functions(path.read_text("utf-8"))}
    assert long - EXEMPTIONS.keys() == set()


def test_modules_are_named_for_what_they_hold() -> None:
    for path in ALL_FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        assert not {part.lower().strip("_") for part in parts} & SHAPELESS_NAMES, name_of(path)


def test_files_begin_by_saying_what_they_are() -> None:
    for path in PRODUCT_FILES:
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        assert docstring, name_of(path)
        assert docstring.splitlines()[0].endswith((".", ":", "?")), name_of(path)


def test_only_package_files_say_what_they_export() -> None:
    inside = {name_of(path) for path in PRODUCT_FILES if "\n__all__" in path.read_text("utf-8")}
    # errors.py says that a star takes nothing from it.
    assert {name for name in inside if not name.endswith("/__init__.py")} <= {"appliance/errors.py"}


def test_every_exemption_is_still_needed() -> None:
    for exemption in EXEMPTIONS:
        file, _, function = exemption.partition(":")
        source = (ROOT / file).read_text("utf-8")
        needed = function in long_functions(source) if function else num_lines(source) > MOST_LINES_OF_A_FILE
        assert needed, f"{exemption} is short enough now"


def test_the_measures_measure() -> None:
    body = "\n".join(f"    x = {i}" for i in range(MOST_LINES_OF_A_FUNCTION))
    assert long_functions(f"def f():\n{body}") == ["f"]
    assert long_functions(f"async def g():\n{body}") == ["g"]
    assert long_functions("def f():\n" + body.rsplit("\n", 1)[0]) == []
    assert len(ALL_FILES) > 150
