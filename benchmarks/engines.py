"""Who is measured: our engine and the peers, each by the name it has in the tables."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from appliance import paths
from benchmarks.peers import Peers, install_peers
from benchmarks.random_model import random_q8_0_model
from benchmarks.worker_process import WORKERS, WorkerProcess

CHECKOUT = Path(__file__).resolve().parent.parent
OURS = "ours, Q4_1 file"
OURS_INT8 = "ours, Q4_1 file, int8 activations"
OURS_8BIT = "ours, Q8_0 file"
OURS_1B = "ours, 1.1B shape, int8"
REFERENCE = "ours, float32 reference"
LLAMA_Q4_1 = "llama.cpp, Q4_1 file"
LLAMA_Q4_0 = "llama.cpp, Q4_0"
LLAMA_Q8_0 = "llama.cpp, Q8_0"
OPENVINO = "OpenVINO GenAI, Q4_1 file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One machine's set-up: the peers, the model's files and a folder for everything that is made."""

    folder: Path
    peers: Peers
    model: Path
    threads: int

    @property
    def q4_0(self) -> Path:
        return self._requantized("q4_0")

    @property
    def q8_0(self) -> Path:
        return self._requantized("q8_0")

    @property
    def log_folder(self) -> Path:
        folder = self.folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def start(self, name: str) -> WorkerProcess:
        """Start the engine of that name; it loads while others may too."""
        threads = ("--threads", str(self.threads))
        if name in (LLAMA_Q4_1, LLAMA_Q4_0, LLAMA_Q8_0):
            file = {LLAMA_Q4_1: self.model, LLAMA_Q4_0: self.q4_0, LLAMA_Q8_0: self.q8_0}[name]
            command: list[str | Path] = [
                self.peers.llama_python,
                WORKERS / "llama_worker.py",
                "--file",
                file,
                *threads,
            ]
            return self._worker(name, command, {"LLAMA_CPP_LIB_PATH": str(self.peers.llama_libraries)})
        if name == OPENVINO:
            python = self.peers.openvino_python
            return self._worker(
                name, [python, WORKERS / "openvino_worker.py", "--file", self.model, *threads], {}
            )
        command = [sys.executable, WORKERS / "our_worker.py", *self._our_flags(name), *threads]
        library = ("--library-folder", paths.cache_dir() / "native")
        return self._worker(name, [*command, *library], {"PYTHONPATH": str(CHECKOUT)})

    def _our_flags(self, name: str) -> list[str | Path]:
        if name == OURS_1B:
            file = random_q8_0_model(self.folder / "models" / "random-1.1b-q8_0.gguf")
            return ["--file", file, "--precision", "int8", "--max-sequences", "1"]
        if name == REFERENCE:
            precision = ("--precision", "f32", "--max-sequences", "1")
            return ["--file", self.model, "--backend", "eager", *precision]
        if name == OURS_INT8:
            return ["--file", self.model, "--activations", "int8"]
        return ["--file", {OURS: self.model, OURS_8BIT: self.q8_0}[name]]

    def _worker(self, name: str, command: list[str | Path], environment: dict[str, str]) -> WorkerProcess:
        return WorkerProcess(name, command, log_folder=self.log_folder, environment=environment)

    def _requantized(self, file_type: str) -> Path:
        """The model's weights in another of llama.cpp's types, made by llama.cpp once."""
        size = self.model.stat().st_size
        target = self.folder / "models" / f"{self.model.stem}-{size}-{file_type}.gguf"
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            worker = [self.peers.llama_python, WORKERS / "llama_worker.py", "--file", self.model]
            subprocess.run(
                [*map(str, worker), "--quantize-to", str(part), "--type", file_type],
                env={**os.environ, "LLAMA_CPP_LIB_PATH": str(self.peers.llama_libraries)},
                stderr=subprocess.DEVNULL,
                check=True,
            )
            part.rename(target)
        return target


def open_bench(folder: Path, model: Path, threads: int) -> Bench:
    """Install what is missing. Slow the first time."""
    return Bench(folder=folder, peers=install_peers(folder), model=model, threads=threads)
