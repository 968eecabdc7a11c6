"""Larger client libraries, unchanged, over a real socket: each in one environment made for the purpose."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.rig import MODEL_ID, make_rig, serve

PACKAGES = (
    "langchain-openai",
    "langchain-ollama",
    "litellm",
    "llama-index-llms-openai-like",
    "llama-index-llms-ollama",
)
SCRIPT = Path(__file__).with_name("other_clients.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the libraries; OTHER_CLIENTS_PYTHON names one that is already there."""
    if given := os.environ.get("OTHER_CLIENTS_PYTHON"):
        return Path(given)
    folder = tmp_path_factory.mktemp("clients")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    found = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([str(found), "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("library", ["langchain_openai", "langchain_ollama", "litellm", "llama_index"])
def test_a_library_works_as_it_is(python: Path, library: str) -> None:
    with make_rig(context_length=4096, num_blocks=512) as rig, serve(rig) as server:
        offline = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}
        done = subprocess.run(
            [str(python), str(SCRIPT), library, server.url, MODEL_ID],
            capture_output=True,
            text=True,
            timeout=300,
            env=offline,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
