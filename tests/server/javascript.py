"""npm packages for tests: installed once into the build folder."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGES = ("openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92")
FOLDER = Path(__file__).parents[2] / "build" / "javascript-clients"

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="no node and npm"
)


def install_packages() -> Path:
    """The folder with the packages; JAVASCRIPT_CLIENTS names one that is there."""
    if given := os.environ.get("JAVASCRIPT_CLIENTS"):
        return Path(given)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true, "type": "module"}')
    npm = shutil.which("npm")
    assert npm is not None
    subprocess.run([npm, "install", "--silent", "--no-audit", *PACKAGES], cwd=FOLDER, check=True)
    return FOLDER


def run_script(script: Path, *arguments: str) -> str:
    """What the script printed; its own errors where it failed. Node looks for packages beside the script."""
    copy = install_packages() / script.name
    shutil.copyfile(script, copy)
    node = shutil.which("node")
    assert node is not None
    done = subprocess.run(
        [node, str(copy), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
