"""What the size of a KV page costs and saves: decode time per step, and places wasted in last pages.

python -m benchmarks.kv_pages --file MODEL.gguf [--kv-dtype int8]
"""

import argparse
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.engine.batch import ScheduledSequence
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.formats.gguf import read_gguf
from appliance.runtime.cpu import CpuBackend
from appliance.runtime.device import CPU
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from appliance.runtime.native_step import build_step

PAGE_SIZES = (16, 32, 64, 128)
CASES = ((1, 2048), (16, 2048))  # sequences, tokens of context each
STEP_TOKENS = 512
_ROUNDS, _STEPS = 5, 4
_GREEDY = SamplingParams(temperature=0.0)
# Log-normal around 600 tokens, as chats are; for the waste in last pages.
_MEAN_TOKENS, _SIGMA = 600, 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """`num_sequences` contexts of `context` random tokens in pages of one size, each in a shuffled table."""

    loaded: LoadedBackend
    block_size: int
    num_sequences: int
    context: int

    def step_s(self) -> float:
        """Median seconds of a step that computes one token of every sequence."""
        times = []
        for step in range(_STEPS):
            started_s = time.perf_counter()
            self._run([(index, 1, self.context + step) for index in range(self.num_sequences)])
            times.append(time.perf_counter() - started_s)
        return statistics.median(times)

    def _run(self, work: list[tuple[int, int, int]]) -> None:
        sequences = tuple(
            ScheduledSequence(
                sequence_id=SequenceId(index),
                new_token_ids=tuple(random.randrange(300, 20_000) for _ in range(num_new)),
                num_computed_tokens=num_computed,
                block_table=self._table(index),
                known_token_ids=(),
                num_prompt_tokens=0,
                sampling=_GREEDY,
            )
            for index, num_new, num_computed in work
        )
        backend = self.loaded.backend
        assert isinstance(backend, CpuBackend)
        backend.step(build_step(sequences, block_size=self.block_size))

    def _table(self, index: int) -> tuple[BlockId, ...]:
        pages = pages_of(self.context + _STEPS, self.block_size)
        order = list(range(self.num_sequences * pages))
        random.Random(0).shuffle(order)  # a pool in use hands out pages from everywhere
        return tuple(BlockId(page) for page in order[index * pages : (index + 1) * pages])


def pages_of(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def waste_share(block_size: int) -> float:
    """Share of the places in used pages that hold no token, over log-normal lengths."""
    chance = random.Random(1)
    lengths = [max(1, int(_MEAN_TOKENS * chance.lognormvariate(0, _SIGMA))) for _ in range(20_000)]
    places = sum(pages_of(length, block_size) * block_size for length in lengths)
    return 1 - sum(lengths) / places


def load(args: argparse.Namespace) -> LoadedBackend:
    wishes = LoadWishes(
        backend="cpu",
        precision="auto",
        activations="auto",
        kv_dtype=args.kv_dtype,
        device=CPU,
        num_threads=args.threads,
        step_tokens=STEP_TOKENS,
        free_bytes=2**40,
        library_folder=Path(args.library_folder),
    )
    with read_gguf(Path(args.file)) as file:
        return load_backend(file, wishes, lambda _text, _share: None)


def measure(loaded: LoadedBackend, num_sequences: int, context: int) -> dict[int, list[float]]:
    """Interleave the page sizes, so that a slow minute falls on all of them. Seconds by page size."""
    times: dict[int, list[float]] = {size: [] for size in PAGE_SIZES}
    for _ in range(_ROUNDS):
        for size in PAGE_SIZES:
            num_pages = num_sequences * pages_of(context + _STEPS, size)
            layout = replace(loaded.backend.kv_layout, block_size=size)
            loaded.backend.attach_kv(num_pages, layout)
            decoder = Decoder(loaded=loaded, block_size=size, num_sequences=num_sequences, context=context)
            for layer in backend_pages(loaded):
                layer.fill(1)  # untouched memory is one page of zeros, and always in cache
            decoder.step_s()
            times[size].append(decoder.step_s())
    return times


def backend_pages(loaded: LoadedBackend) -> list[NDArray[np.generic]]:
    assert isinstance(loaded.backend, CpuBackend)
    return [pages for layer in loaded.backend.pages for pages in (layer.keys, layer.values)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--library-folder", default=str(Path(tempfile.gettempdir()) / "appliance-native"))
    args = parser.parse_args()
    loaded = load(args)
    layout = loaded.backend.kv_layout
    print(f"{Path(args.file).name}: {layout.num_kv_heads} KV heads of {layout.head_size}, {loaded.kv_dtype}")
    print("| sequences x context | " + " | ".join(f"{size} tokens, ms" for size in PAGE_SIZES) + " |")
    for num_sequences, context in CASES:
        times = measure(loaded, num_sequences, context)
        cells = (f"{1000 * statistics.median(t):.2f} ({1000 * min(t):.2f})" for t in times.values())
        print(f"| {num_sequences} x {context} | " + " | ".join(cells) + " |", flush=True)
    print("| places without a token | " + " | ".join(f"{waste_share(s):.1%}" for s in PAGE_SIZES) + " |")


if __name__ == "__main__":
    main()
