"""Who may import whom: read from every import statement, and checked by importing for real."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("appliance", "kernels", "tui")


@dataclass(frozen=True)
class Rule:
    """What modules under a name may import: of ours, by prefix, and of others, by top-level name.

    The standard library and the module's own package are always allowed.
    """

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def appliance(names: str) -> tuple[str, ...]:
    return tuple(f"appliance.{name}" for name in names.split())


ENGINE_VALUES = appliance("engine.batch engine.constraint engine.percentiles engine.sequence engine.stats")
# The longest name that fits a module rules it. A module that no name fits fails the suite.
RULES = {
    "appliance": Rule(),  # the package's own __init__
    "appliance.errors": Rule(),
    "appliance.logs": Rule(ours=("appliance.observe.request_context",)),
    "appliance.log_ring": Rule(ours=("appliance.observe.request_context",)),
    "appliance.config": Rule(ours=("appliance.errors",)),
    "appliance.api_keys": Rule(ours=("appliance.errors",), others=("msgspec",)),
    "appliance.paths": Rule(ours=("appliance.errors",), others=("platformdirs",)),
    "appliance.catalog": Rule(ours=("appliance.errors", "appliance.paths"), others=("msgspec",)),
    "appliance.precision_map": Rule(ours=("appliance.errors",), others=("numpy",)),
    "appliance.matrix_losses": Rule(ours=("appliance.paths", "appliance.quality"), others=("msgspec",)),
    "appliance.quality": Rule(ours=("appliance.errors", "appliance.paths"), others=("msgspec",)),
    "appliance.engine": Rule(ours=("appliance.errors",)),
    "appliance.formats": Rule(ours=("appliance.errors",), others=("numpy",)),
    "appliance.text": Rule(
        ours=("appliance.engine.constraint", "appliance.errors", "appliance.formats"),
        others=("jinja2", "llguidance", "tokenizers"),
    ),
    "kernels": Rule(others=("numpy", "torch")),
    "appliance.model": Rule(ours=("appliance.errors", "kernels"), others=("torch",)),
    "appliance.runtime": Rule(
        ours=(*appliance("errors formats model precision_map"), "kernels", *ENGINE_VALUES),
        others=("numpy", "torch"),
    ),
    # The load generator: HTTP only, whatever server answers.
    "appliance.bench": Rule(ours=("appliance.errors", *ENGINE_VALUES), others=("httpx", "msgspec", "numpy")),
    "appliance.observe": Rule(ours=("appliance.errors", *ENGINE_VALUES), others=("httpx", "psutil")),
    # Runs a model step by step without engine and server; the pages and plots are the benchmark's.
    "appliance.profiling": Rule(
        ours=(
            *appliance("bench.html_page bench.svg_plot engine errors formats model.decoder runtime text"),
            *("kernels.cpu.build", "kernels.cpu.limits"),
        ),
        others=("torch",),
    ),
    # The doctor looks at everything and loads nothing; how to listen is passed in.
    "appliance.observe.doctor": Rule(
        ours=(
            *appliance("catalog config download errors formats observe paths runtime.threads"),
            *("kernels.cpu.build", "kernels.cpu.library"),
        ),
        others=("psutil",),
    ),
    "appliance.derived_models": Rule(ours=("appliance.errors", "appliance.paths"), others=("msgspec",)),
    "appliance.model_library": Rule(
        ours=appliance("catalog derived_models download errors formats paths"), others=("msgspec",)
    ),
    "appliance.model_pool": Rule(
        ours=appliance("engine errors matrix_losses observe.prompt_log quality text")
    ),
    "appliance.model_overrides": Rule(
        ours=appliance("errors model.config model.rope_override model_pool text"), others=("msgspec",)
    ),
    "appliance.download": Rule(
        ours=(
            "appliance.catalog",
            "appliance.errors",
            "appliance.formats.appended_model",
            "appliance.paths",
        ),
        others=("filelock", "httpx", "huggingface_hub", "msgspec"),
    ),
    "appliance.server": Rule(
        ours=appliance(
            "api_keys catalog config derived_models download.workspace engine errors log_ring model_library "
            "model_pool observe text"
        ),
        others=("litestar", "msgspec", "prometheus_client", "psutil", "uvicorn", "uvloop"),
    ),
    # Shared with the dashboard, which has nothing else of the server.
    "appliance.server.schemas": Rule(others=("msgspec",)),
    "tui": Rule(
        ours=("appliance.paths", "appliance.server.schemas"), others=("httpx", "msgspec", "rich", "textual")
    ),
    # What composes the rest. The loader asks torch about a GPU's memory, once there is one.
    "appliance.loader": Rule(
        ours=appliance(
            "catalog config engine errors formats matrix_losses model.rope_override model_pool observe paths "
            "pool_choice precision_map quality runtime text",
        ),
        others=("msgspec", "torch"),
    ),
    "appliance.pool_choice": Rule(ours=appliance("config errors model.config runtime")),
    "appliance.memory_forecast": Rule(ours=appliance("catalog config formats loader pool_choice runtime")),
    # Measures what the loader would load.
    "appliance.eval": Rule(
        ours=(
            *appliance(
                "catalog config engine errors formats loader matrix_losses model observe.resources paths "
                "precision_map quality runtime text"
            ),
            "kernels",
        ),
        others=("msgspec", "numpy", "torch"),
    ),
    "appliance.serve": Rule(
        ours=appliance(
            "api_keys catalog config download errors loader log_ring model.rope_override "
            "model_library model_overrides model_pool observe paths server"
        ),
    ),
    "appliance.commands": Rule(
        ours=(
            "tui.client",
            "tui.run",
            "tui.targets",
            "tui.tell",
            *appliance(
                "__main__ api_keys bench catalog config desktop download engine errors eval first_run "
                "formats installation loader logs matrix_losses memory_forecast model_overrides model_pool "
                "observe paths "
                "precision_map profiling quality serve server.listener service text"
            ),
        ),
        others=("httpx", "msgspec", "psutil", "rich"),
    ),
    "appliance.__main__": Rule(ours=appliance("commands config desktop errors")),
    "appliance.first_run": Rule(ours=appliance("catalog config paths")),
    "appliance.other_programs": Rule(ours=("appliance.paths",)),
    "appliance.desktop": Rule(ours=appliance("other_programs paths")),
    "appliance.installation": Rule(ours=appliance("formats.appended_model paths")),
    "appliance.service": Rule(ours=appliance("errors other_programs paths")),
}


def is_under(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def rule_of(module: str) -> tuple[str, Rule]:
    fitting = [name for name in RULES if is_under(module, name)]
    name = max(fitting, key=len, default="")
    # "appliance" is for the package itself: a new package needs a rule of its own.
    is_ruled = name not in ("", "appliance") or module == "appliance"
    assert is_ruled, f"no rule for {module}; add one to RULES"
    return name, RULES[name]


def imported_names(source: str) -> set[str]:
    """Every module that the source imports, at the top or inside, also by a name in a string."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            # `from appliance import paths` imports a module; `from appliance.paths import f` a function.
            names |= {
                f"{node.module}.{alias.name}" if node.module in PACKAGES else str(node.module)
                for alias in node.names
            }
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                names.add(str(node.args[0].value))
    return names


def violations(module: str, source: str) -> list[str]:
    """The imports of a module that its rule does not allow."""
    name, rule = rule_of(module)
    is_gpu = module.rsplit(".", 1)[-1].startswith("gpu") and is_under(module, "kernels")
    others = (*rule.others, "triton") if is_gpu else rule.others
    found = []
    for imported in sorted(imported_names(source)):
        top = imported.split(".")[0]
        if top in PACKAGES:
            allowed = (name, *rule.ours, "appliance.__version__")
            if not any(is_under(imported, prefix) for prefix in allowed):
                found.append(imported)
        elif top not in sys.stdlib_module_names and top not in others:
            found.append(imported)
    return found


def modules() -> dict[str, Path]:
    files = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


MODULES = modules()


def test_every_module_imports_only_what_its_rule_allows() -> None:
    found = {module: violations(module, path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
    assert {module: imports for module, imports in found.items() if imports} == {}
    assert len(found) > 100


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("appliance.engine.scheduler", "import torch"),
        ("appliance.engine.scheduler", "import numpy as np"),
        ("appliance.engine.scheduler", "from appliance.server import app"),
        ("kernels.norm.reference", "import triton"),
        ("kernels.norm.reference", "from appliance.errors import BadModelFile"),
        ("appliance.model.decoder", "from appliance.runtime.kv_cache import plan_kv"),
        ("appliance.model.decoder", "from appliance.engine.batch import Batch"),
        ("appliance.runtime.runner", "from appliance.engine.scheduler import Scheduler"),
        ("appliance.runtime.runner", "def f():\n    import litestar"),
        ("appliance.formats.gguf", "import torch"),
        ("appliance.text.tokenizer", "import numpy"),
        ("appliance.server.app", "import torch.nn"),
        ("appliance.server.app", "from appliance.runtime.runner import ModelRunner"),
        ("appliance.server.app", "from appliance import loader"),
        ("appliance.server.app", "import importlib; importlib.import_module('appliance.loader')"),
        ("appliance.server.schemas", "from appliance.server import app"),
        ("tui.app", "from appliance.server.app import create_app"),
        ("tui.app", "from appliance.engine.stats import EngineSnapshot"),
        ("appliance.catalog", "import packaging.version"),
        ("appliance.catalog", "from tests import conftest"),
        ("appliance.__main__", "from appliance.serve import open_appliance"),
        ("appliance.commands.run", "import torch"),
    ],
)
def test_the_rules_catch_what_they_are_for(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


def test_triton_is_allowed_in_gpu_files_only() -> None:
    assert violations("kernels.norm.gpu", "import triton.language as tl") == []
    assert violations("kernels.norm.gpu_tuned", "import triton") == []
    assert violations("kernels.gpu.reference", "import triton") == ["triton"]


def test_a_module_without_a_rule_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"no rule for appliance\.novelty"):
        rule_of("appliance.novelty")


def test_every_rule_rules_something() -> None:
    ruling = {rule_of(module)[0] for module in MODULES}
    assert ruling == set(RULES)


def test_the_packaging_folder_never_becomes_a_package() -> None:
    """It would shadow the library of that name, which pip and others import."""
    assert not (ROOT / "packaging" / "__init__.py").exists()


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["appliance.server.app", "appliance.serve", "appliance.__main__", "tui.run"]
)
def test_importing_it_loads_no_torch(module: str) -> None:
    heavy = ("torch", "triton", "appliance.runtime")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    assert run_python(code) == "[]"


BARE_MACHINE = """
import importlib, importlib.abc, pkgutil, sys

BLOCKED = {
    "bitsandbytes", "filelock", "gguf", "httpx", "huggingface_hub", "jinja2", "litestar", "msgspec",
    "platformdirs", "psutil", "rich", "textual", "tui", "uvicorn",
}
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not on this machine")

import torch  # its own optional imports are its own affair
sys.meta_path.insert(0, Block())
try:
    import litestar
except ImportError:
    pass
else:
    raise SystemExit("the block does not work")
has_triton = importlib.util.find_spec("triton") is not None
count = 0
for root in ("appliance.engine", "appliance.runtime", "appliance.model", "kernels"):
    package = importlib.import_module(root)
    for found in pkgutil.walk_packages(package.__path__, root + "."):
        if found.name.rsplit(".", 1)[-1].startswith("gpu") and not has_triton:
            continue
        importlib.import_module(found.name)
        count += 1
print(count)
"""


def test_the_data_plane_imports_on_a_machine_that_has_torch_and_little_else() -> None:
    assert int(run_python(BARE_MACHINE)) > 30
