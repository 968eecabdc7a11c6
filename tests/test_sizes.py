"""Sizes, names and first lines: the part of the style that can be counted."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("appliance", "kernels", "tui")
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 50
SHAPELESS_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
# "path" or "path:function", and why it may be longer: kernels, wire schemas and tables only.
EXEMPTIONS: dict[str, str] = {}

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


ALL_FILES = [*python_files(*PRODUCT, "packaging", "benchmarks", "tests")]
by_file = pytest.mark.parametrize("path", ALL_FILES, ids=name_of)
by_product_file = pytest.mark.parametrize("path", python_files(*PRODUCT), ids=name_of)


@by_file
def test_a_file_is_short(path: Path) -> None:
    assert name_of(path) in EXEMPTIONS or num_lines(path.read_text("utf-8")) <= MOST_LINES_OF_A_FILE


@by_file
def test_functions_are_short(path: Path) -> None:
    found = long_functions(path.read_text("utf-8"))
    assert [name for name in found if f"{name_of(path)}:{name}" not in EXEMPTIONS] == []


@by_file
def test_a_module_is_named_for_what_it_holds(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    assert not {part.lower().strip("_") for part in parts} & SHAPELESS_NAMES


@by_product_file
def test_a_file_begins_by_saying_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":", "?"))


@by_product_file
def test_only_a_packages_own_file_says_what_it_exports(path: Path) -> None:
    if path.name != "__init__.py" and name_of(path) != "appliance/errors.py":
        assert "\n__all__" not in path.read_text("utf-8")


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
