"""What is inside: a bill of materials (CycloneDX), licences, and the digest of every file.

All three lie in the tree itself, where `appliance version --verbose` and `appliance self-check` read them.
"""

import hashlib
import json
import shutil
import sys
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

from appliance import __version__

MANIFEST_FILE = "manifest.json"
BILL_FILE = "sbom.cdx.json"
LICENCES = "licences"


def write_materials(tree: Path, modules: Path, *, zstd: Path) -> None:
    """Write licences, bill and manifest into `tree`; `modules` names the modules inside, as JSON."""
    inside = tree / "_internal"
    distributions = _distributions(json.loads(modules.read_text("utf-8")))
    for found in distributions:
        _copy_licences(found, inside / LICENCES / found.name)
    _copy_other_licences(inside / LICENCES, zstd)
    components = [_component(found) for found in distributions] + _others()
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": "inference-appliance", "version": __version__}
        },
        "components": components,
    }
    (inside / BILL_FILE).write_text(json.dumps(bill, indent=1) + "\n", "utf-8")
    (inside / MANIFEST_FILE).write_text(json.dumps(_digests(tree), indent=0) + "\n", "utf-8")


def _distributions(modules: list[str]) -> list[Distribution]:
    owners = packages_distributions()
    names = {name for module in modules for name in owners.get(module, ())} - {"inference-appliance"}
    return sorted((distribution(name) for name in names), key=lambda found: found.name.lower())


def _component(found: Distribution) -> dict[str, object]:
    component: dict[str, object] = {
        "type": "library",
        "name": found.name,
        "version": found.version,
        "purl": f"pkg:pypi/{found.name.lower().replace('_', '-')}@{found.version}",
    }
    licence = found.metadata.get("License-Expression") or found.metadata.get("License")
    if licence:
        component["licenses"] = [{"license": {"name": licence.splitlines()[0][:100]}}]
    return component


def _others() -> list[dict[str, object]]:
    python = ".".join(map(str, sys.version_info[:3]))
    return [
        {
            "type": "framework",
            "name": "CPython",
            "version": python,
            "licenses": [{"license": {"name": "PSF-2.0"}}],
        },
        {"type": "library", "name": "zstd", "licenses": [{"license": {"name": "BSD-3-Clause"}}]},
    ]


def _copy_licences(found: Distribution, folder: Path) -> None:
    for file in found.files or ():
        name = file.name.lower()
        is_licence = name.startswith(("licen", "copying", "notice", "authors")) or "licenses" in file.parts
        source = Path(str(file.locate()))
        if is_licence and source.is_file() and file.suffix not in (".py", ".pyc"):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / file.name)


def _copy_other_licences(folder: Path, zstd: Path) -> None:
    sources = {"zstd": zstd / "LICENSE"}
    for place in (Path(sys.base_prefix) / "LICENSE.txt", Path(sys.base_prefix) / "lib" / "LICENSE.txt"):
        sources["CPython"] = place
        if place.is_file():
            break
    for name, source in sources.items():
        if source.is_file():
            (folder / name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name / source.name)


def _digests(tree: Path) -> dict[str, str]:
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        path.relative_to(tree).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
