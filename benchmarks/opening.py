"""How long a model takes to open: a large vocabulary, and weights from a disk that has to be read.

python -m benchmarks.opening [--file MODEL.gguf] [--vocabulary MODEL.gguf] [--rounds N]

Without --file a random model of 1.1 GB is written. Reading and loading take turns, each in a process of its
own and with none of the file in the page cache. Beside them, what no loading that packs weights can avoid: as
much memory as the file has bytes, in huge pages, touched for the first time. --vocabulary times a file's
vocabulary, and the same as a tokenizer.json: read for the first time, and once its tables are in the cache.
"""

import argparse
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.hf_vocabulary import write_folder
from benchmarks.random_model import random_q8_0_model

_FOLDER = Path(tempfile.gettempdir()) / "appliance-opening"
_READ_BYTES = 8 << 20
_POLL_S = 0.005


def forget(path: Path) -> None:
    """Take a file, or those of a folder, out of the page cache."""
    if path.is_dir():
        for each in path.iterdir():
            forget(each)
        return
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def read(path: Path) -> str:
    started_s = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(_READ_BYTES)
        while file.readinto(buffer):
            pass
    return f"{time.perf_counter() - started_s}"


def touch_memory(path: Path) -> str:
    started_s = time.perf_counter()
    memory = mmap.mmap(-1, path.stat().st_size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    for place in range(0, len(memory), mmap.PAGESIZE):
        memory[place] = 1
    return f"{time.perf_counter() - started_s}"


class PeakMemory:
    """Watches what this process holds of its own: mapped file pages are the system's to take back."""

    def __init__(self) -> None:
        self._before, self.num_bytes, self._is_over = self._own_bytes(), 0, False
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> int:
        self._is_over = True
        self._thread.join()
        return self.num_bytes

    def _watch(self) -> None:
        while not self._is_over:
            self.num_bytes = max(self.num_bytes, self._own_bytes() - self._before)
            time.sleep(_POLL_S)

    @staticmethod
    def _own_bytes() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("/proc/self/status has no RssAnon")


def load(path: Path) -> str:
    """Open, read the tokenizer and load as `serve` does; torch is imported before."""
    from appliance import paths
    from appliance.config import resolve
    from appliance.formats.model_file import open_model_file
    from appliance.loader import wishes_of
    from appliance.runtime.cpu_loading import open_library
    from appliance.runtime.loading import load_backend
    from appliance.text.model_text import read_tokenizer

    settings = resolve({}, environment={})
    wishes = wishes_of(settings)
    open_library(paths.native_dir())
    memory = PeakMemory()
    started_s = time.perf_counter()
    with open_model_file(path) as file:
        read_tokenizer(file)
        loaded = load_backend(file, wishes, lambda *_: None)
    took_s = time.perf_counter() - started_s
    return f"{took_s} {memory.stop()} {loaded.weights_bytes} {loaded.backend_name}"


def vocabulary(path: Path) -> str:
    from appliance.formats.model_file import open_model_file
    from appliance.text.model_text import read_tokenizer

    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    with open_model_file(path) as file:
        tokenizer = read_tokenizer(file, _FOLDER / "tokens")
        tokenizer.encode("The quick brown fox, naïvely.", parse_special=True)
    return f"{time.perf_counter() - started_s} {time.process_time() - started_cpu_s} {tokenizer.vocab_size}"


_TASKS = {"read": read, "memory": touch_memory, "load": load, "vocabulary": vocabulary}


def in_a_process(task: str, path: Path) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.opening", "--task", task, "--file", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def compare_loading(path: Path, rounds: int) -> None:
    reads, memories, loads = list[float](), list[float](), list[float]()
    peak, held, backend = 0, 0, ""
    for _ in range(rounds):
        forget(path)
        reads.append(float(in_a_process("read", path)[0]))
        memories.append(float(in_a_process("memory", path)[0]))
        forget(path)
        took_s, peak_bytes, held_bytes, *words = in_a_process("load", path)
        loads.append(float(took_s))
        peak, held, backend = max(peak, int(peak_bytes)), int(held_bytes), " ".join(words)
    ratios = [load_s / read_s for load_s, read_s in zip(loads, reads, strict=True)]
    print(
        f"{path.name}, {path.stat().st_size / 1e9:.2f} GB from a cold page cache, {rounds} rounds, {backend}"
    )
    print(f"reading  {spread(reads)} s")
    print(f"memory   {spread(memories)} s to be had at all")
    print(f"loading  {spread(loads)} s, {spread(ratios)} times reading")
    least = [read_s + memory_s for read_s, memory_s in zip(reads, memories, strict=True)]
    floors = [load_s / least_s for load_s, least_s in zip(loads, least, strict=True)]
    print(f"         {spread(floors)} times reading and that memory")
    print(f"held     {held / 2**20:.0f} MiB of weights, at most {(peak - held) / 2**20:.0f} MiB besides")


def time_vocabulary(path: Path, rounds: int) -> None:
    colds, warms, warm_cpus = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        shutil.rmtree(_FOLDER / "tokens", ignore_errors=True)
        forget(path)
        colds.append(float(in_a_process("vocabulary", path)[0]))
        warm_s, warm_cpu_s, num_tokens = in_a_process("vocabulary", path)
        warms.append(float(warm_s))
        warm_cpus.append(float(warm_cpu_s))
    print(f"{path.name}, {num_tokens} tokens: opened and a text encoded in a new process, {rounds} rounds")
    print(f"first, from disk {spread(colds)} s; then {spread(warms)} s, CPU time {spread(warm_cpus)} s")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", choices=_TASKS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(_TASKS[arguments.task](arguments.file))
        return
    if arguments.vocabulary:
        time_vocabulary(arguments.vocabulary, arguments.rounds)
        time_vocabulary(write_folder(arguments.vocabulary, _FOLDER / "tokenizer-json"), arguments.rounds)
        return
    compare_loading(arguments.file or random_q8_0_model(_FOLDER / "random.gguf"), arguments.rounds)


if __name__ == "__main__":
    main()
