"""The real small model, fetched once into the checkout's build folder, and the real server around it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.catalog import Catalog, ModelFile
from appliance.config import Settings
from appliance.download.pull import ensure_model
from appliance.download.store import ModelStore
from appliance.loader import load_model
from appliance.model_pool import ResidentModel

CHECKOUT = Path(__file__).resolve().parents[2]
MODELS_DIR = CHECKOUT / "build" / "models"
DEFAULT_MODEL = Settings().model


@pytest.fixture(scope="session")
def model_file() -> ModelFile:
    return ensure_model(DEFAULT_MODEL, Catalog.load(), ModelStore(MODELS_DIR))


@pytest.fixture(scope="session")
def float32_model(model_file: ModelFile) -> Iterator[ResidentModel]:
    """The model on the reference backend in float32, engine running."""
    settings = Settings(backend="eager", precision="f32", max_sequences=32, context=2048)
    model = load_model(settings, model_file, lambda _text, _share: None)
    yield model
    model.close()


@pytest.fixture(scope="session")
def native_model(model_file: ModelFile) -> Iterator[ResidentModel]:
    """The model as a user without a GPU gets it."""
    settings = Settings(backend="cpu", max_sequences=32, context=2048)
    model = load_model(settings, model_file, lambda _text, _share: None)
    yield model
    model.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """`appliance serve` as a user starts it, without a terminal."""

    url: str
    process: subprocess.Popen[str]

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Ready"):
                return
        raise AssertionError(f"the server ended with {self.process.wait()} before it was ready")


def start_server(*flags: str) -> RunningServer:
    environment = {**os.environ, "APPLIANCE_MODELS_DIR": str(MODELS_DIR)}
    process = subprocess.Popen(
        [sys.executable, "-m", "appliance", "serve", "--port", "0", "--context", "2048", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env=environment,
    )
    assert process.stdout is not None
    first_line = process.stdout.readline()
    match = re.match(r"Listening on (http://\S+),", first_line)
    assert match, f"the server said {first_line!r}"
    return RunningServer(url=match[1], process=process)


def end_server(server: RunningServer) -> int:
    server.process.send_signal(signal.SIGTERM)
    exit_code = server.process.wait(timeout=30)
    assert server.process.stdout is not None
    server.process.stdout.close()
    return exit_code


@pytest.fixture(scope="session")
def server(model_file: ModelFile) -> Iterator[RunningServer]:
    running = start_server()
    running.wait_ready()
    yield running
    assert end_server(running) == 0
