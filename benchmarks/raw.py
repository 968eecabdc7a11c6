"""The engines themselves, without HTTP: decode and prefill, every engine's turn in every round."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.engines import (
    LLAMA_Q4_0,
    LLAMA_Q4_1,
    LLAMA_Q8_0,
    OPENVINO,
    OURS,
    OURS_1B,
    OURS_8BIT,
    OURS_INT8,
    Bench,
)
from benchmarks.limits import MACHINE, measure_limits
from benchmarks.results import Part
from benchmarks.worker_process import WorkerFailed, WorkerProcess

WEIGHT_GB_S = "weights read, GB/s"
USED_GOP_S = "8-bit operations used, GOP/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One thing to measure: `steps` decodes of `batch` sequences from `context` on, or a prompt."""

    part: str
    context: int
    batch: int = 1
    steps: int = 64

    @property
    def name(self) -> str:
        if self.part == "prefill":
            return f"prefill {self.context}"
        return f"batch {self.batch}, context {self.context}"

    def prepare(self, worker: WorkerProcess) -> dict[str, object]:
        if self.part == "prefill":
            answer: dict[str, object] = worker.call("prepare_prefill", tokens=self.context)
        else:
            answer = worker.call("prepare_decode", batch=self.batch, context=self.context)
        return answer

    def measure(self, worker: WorkerProcess) -> float:
        """Tokens per second."""
        if self.part == "prefill":
            return float(worker.call("prefill", tokens=self.context))
        return float(worker.call("decode", batch=self.batch, context=self.context, steps=self.steps))


_DECODE_1 = (Cell(part="decode", context=128, steps=96), Cell(part="decode", context=2048))
_DECODE_MANY = (
    Cell(part="decode", context=128, batch=8, steps=32),
    Cell(part="decode", context=128, batch=32, steps=16),
)
_DECODE_MANY_LONG = (
    Cell(part="decode", context=2048, batch=8, steps=16),
    Cell(part="decode", context=2048, batch=32, steps=8),
)
_PREFILL = tuple(Cell(part="prefill", context=tokens) for tokens in (128, 512, 2048))
_OURS = (OURS, OURS_INT8, OURS_8BIT, OURS_1B)
CELLS = {
    OURS: (*_DECODE_1, *_DECODE_MANY, *_DECODE_MANY_LONG, *_PREFILL),
    OURS_INT8: (*_DECODE_1, *_DECODE_MANY, *_PREFILL),
    LLAMA_Q4_1: (*_DECODE_1, *_DECODE_MANY, *_PREFILL),
    LLAMA_Q4_0: (*_DECODE_1, *_DECODE_MANY, *_DECODE_MANY_LONG, *_PREFILL),
    OURS_8BIT: (*_DECODE_1, *_DECODE_MANY, *_PREFILL),
    LLAMA_Q8_0: (*_DECODE_1, *_DECODE_MANY, *_PREFILL),
    OPENVINO: (*_DECODE_1, *_PREFILL),
    OURS_1B: (_DECODE_1[0],),
}


def run_raw(bench: Bench, parts: dict[str, Part], rounds: int) -> None:
    """Fill the parts `decode` and `prefill`, those of them that are asked for."""
    with _started(bench, parts) as workers:
        turns = [
            (cell, worker)
            for name, worker in workers.items()
            for cell in CELLS[name]
            if cell.part in parts and _is_prepared(cell, worker, parts[cell.part])
        ]
        # Every engine's turn at a cell comes close to the others': what disturbs one disturbs all.
        turns.sort(key=lambda turn: (turn[0].part, turn[0].context, turn[0].batch))
        facts = {name: worker.call("facts") for name, worker in workers.items() if name in _OURS}
        for number in range(rounds):
            _measure_limits(bench, parts)
            # Each round the other way round, so that nobody always comes first.
            for cell, worker in turns if number % 2 == 0 else reversed(turns):
                rate = cell.measure(worker)
                parts[cell.part].add(worker.name, cell.name, rate)
            print(f"round {number + 1} of {rounds} of decode and prefill is done", flush=True)
    _add_shares(parts, facts)


@contextmanager
def _started(bench: Bench, parts: dict[str, Part]) -> Iterator[dict[str, WorkerProcess]]:
    """Start every engine that has something to do. A peer that cannot start is told and left out."""
    with ExitStack() as stack:
        workers = {}
        for name, cells in CELLS.items():
            if not any(cell.part in parts for cell in cells):
                continue
            worker = stack.enter_context(bench.start(name))
            try:
                worker.wait_ready()
            except WorkerFailed as failure:
                if name in _OURS:
                    raise
                _note(parts.values(), f"{name} did not run: {failure}")
                continue
            workers[name] = worker
            print(f"{name} is loaded", flush=True)
        yield workers


def _is_prepared(cell: Cell, worker: WorkerProcess, part: Part) -> bool:
    try:
        answer = cell.prepare(worker)
    except WorkerFailed as failure:
        _note([part], f"{worker.name} did not run {cell.name}: {failure}")
        return False
    if answer.get("flash_attention") is False:
        part.notes.append(f"{worker.name}, {cell.name}: faster without flash attention, so without it")
    return True


def _note(parts: object, text: str) -> None:
    print(text, flush=True)
    for part in parts:  # type: ignore[attr-defined]
        part.notes.append(text.splitlines()[0])


def _measure_limits(bench: Bench, parts: dict[str, Part]) -> None:
    limits = measure_limits(bench.folder, bench.threads)
    for part in parts.values():
        for cell, value in limits.items():
            part.add(MACHINE, cell, value)


def _add_shares(parts: dict[str, Part], facts: dict[str, dict[str, int]]) -> None:
    """From tokens per second to what of the machine they take."""
    for name, fact in facts.items():
        if "decode" in parts:
            part = parts["decode"]
            for rate in part.values(name, _DECODE_1[0].name):
                part.add(name, WEIGHT_GB_S, rate * fact["weights_bytes"] / 1e9)
        if "prefill" in parts:
            part = parts["prefill"]
            for rate in part.values(name, "prefill 512"):
                # A multiplication and an addition for each parameter; attention not counted.
                part.add(name, USED_GOP_S, rate * 2 * fact["linear_parameters"] / 1e9)
