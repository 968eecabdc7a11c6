"""Measures how long real steps take and writes the table that the simulation charges by.

    python -m benchmarks.scheduling.measure_steps --model FILE.gguf

Steps run through the runner, the choice of tokens included. Every cell is one mix of next tokens and one
prompt chunk; the table keeps the least of a few rounds, since what else the machine does only adds.
"""

import argparse
import json
import platform
import random
import time
from dataclasses import asdict
from pathlib import Path

from appliance import paths
from appliance.engine.batch import Batch, ScheduledSequence
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.formats.gguf import read_gguf
from appliance.runtime.device import CPU
from appliance.runtime.loading import LoadWishes, load_backend
from appliance.runtime.runners import make_runner
from appliance.runtime.threads import usable_threads
from benchmarks.scheduling.step_table import TABLE, MeasuredStep

_CONTEXTS = (64, 1024, 3072, 6144)
_DECODES = (0, 1, 4, 8, 16, 32, 64)
_CHUNKS = (0, 4, 12, 16, 28, 60, 124, 252, 508)
_LONGEST = 8192
_GREEDY = SamplingParams(temperature=0.0)


class StepBench:
    """A loaded model and one sequence's worth of pages, which every sequence reads: content costs nothing."""

    def __init__(self, model: Path, num_threads: int) -> None:
        wishes = LoadWishes(
            backend="cpu",
            precision="auto",
            activations="auto",
            kv_dtype="auto",
            device=CPU,
            num_threads=num_threads,
            step_tokens=640,
            free_bytes=2**40,
            library_folder=paths.cache_dir() / "native",
        )
        with read_gguf(model) as file:
            backend = load_backend(file, wishes, lambda _text, _share: None).backend
        self._block_size = backend.kv_layout.block_size
        self._blocks_each = _LONGEST // self._block_size
        self._num_pages = 12 * self._blocks_each
        backend.attach_kv(self._num_pages)
        self._runner = make_runner(backend)

    def measure(self, decodes: int, decode_context: int, chunk: int, chunk_context: int) -> float:
        """Seconds of one step."""
        sequences = [self._sequence(i, 1, decode_context) for i in range(decodes)]
        if chunk:
            sequences.append(self._sequence(decodes, chunk, chunk_context))
        batch = Batch(sequences=tuple(sequences))
        started_s = time.perf_counter()
        self._runner.collect(self._runner.launch(batch))
        return time.perf_counter() - started_s

    def _sequence(self, index: int, num_new: int, context: int) -> ScheduledSequence:
        first = index * self._blocks_each
        blocks = (BlockId((first + i) % self._num_pages) for i in range(self._blocks_each))
        return ScheduledSequence(
            sequence_id=SequenceId(index + 1),
            new_token_ids=tuple(random.randint(300, 20_000) for _ in range(num_new)),
            num_computed_tokens=context,
            block_table=tuple(blocks),
            known_token_ids=(),
            num_prompt_tokens=0,
            sampling=_GREEDY,
        )


def cells() -> list[tuple[int, int, int, int]]:
    """(decodes, their context, chunk, its context): decode alone, chunk alone, and the two together."""
    alone = [(d, c, 0, 0) for d in _DECODES[1:] for c in _CONTEXTS[:3]]
    chunks = [(0, 0, n, c) for n in _CHUNKS[1:] for c in _CONTEXTS]
    mixed = [(d, 512, n, c) for d in (4, 16) for n in (4, 12, 28, 60, 252) for c in _CONTEXTS]
    return [*alone, *chunks, *mixed]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=usable_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", type=Path, default=TABLE)
    args = parser.parse_args()
    bench = StepBench(args.model, args.threads)
    least: dict[tuple[int, int, int, int], float] = {}
    for _ in range(args.rounds):
        for cell in cells():
            taken_s = bench.measure(*cell)
            least[cell] = min(taken_s, least.get(cell, taken_s))
    steps = [
        MeasuredStep(decodes=d, decode_context=dc, chunk=n, chunk_context=nc, step_s=round(taken_s, 6))
        for (d, dc, n, nc), taken_s in least.items()
    ]
    machine = f"{platform.machine()}, {args.threads} threads, {args.model.name}"
    table = {"machine": machine, "steps": [asdict(step) for step in steps]}
    args.table.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"{len(steps)} steps into {args.table}")


if __name__ == "__main__":
    main()
