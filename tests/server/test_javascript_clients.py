"""npm's openai and the Vercel AI SDK's openai-compatible provider, unchanged, over a real socket."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from server.rig import MODEL_ID, make_rig, serve

PACKAGES = ("openai@6.49.0", "ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92")
SCRIPT = Path(__file__).with_name("clients.mjs")
FOLDER = Path(__file__).parents[2] / "build" / "javascript-clients"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None or shutil.which("npm") is None, reason="no node and npm"),
]


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """The packages, installed once into the build folder; JAVASCRIPT_CLIENTS names one that is there."""
    if given := os.environ.get("JAVASCRIPT_CLIENTS"):
        return Path(given)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true, "type": "module"}')
    npm = shutil.which("npm")
    assert npm is not None
    subprocess.run([npm, "install", "--silent", "--no-audit", *PACKAGES], cwd=FOLDER, check=True)
    return FOLDER


def test_javascript_clients_work_as_they_are(node_modules: Path) -> None:
    script = node_modules / SCRIPT.name  # node looks for packages beside the script
    shutil.copyfile(SCRIPT, script)
    node = shutil.which("node")
    assert node is not None
    with make_rig() as rig, serve(rig) as server:
        done = subprocess.run(
            [node, str(script), server.url, MODEL_ID],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
