"""Our engine under measurement: the backend called directly, one command at a time.

python benchmarks/workers/our_worker.py --file F --threads 2 --backend cpu --precision auto --library-folder D
"""

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from repeat import tokens_per_s
from scoring import nll_of_windows, save_logits
from worker_loop import serve

from appliance.engine.batch import Batch, ScheduledSequence
from appliance.engine.fresh_blocks import CommittedMemory
from appliance.engine.sequence import BlockId, SamplingParams, SequenceId
from appliance.formats.gguf import read_gguf
from appliance.model.decoder import ForwardInputs, ForwardOutputs
from appliance.runtime.cpu import CpuBackend
from appliance.runtime.inputs import build_inputs
from appliance.runtime.loading import LoadWishes, load_backend
from appliance.runtime.native_step import build_step
from appliance.text.gguf_tokenizer import tokenizer_from_gguf

# What the appliance computes in one step unless told otherwise.
STEP_TOKENS = 512
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 300, 20_000
_WARM_UP_STEPS, _WARM_UP_TOKENS = 4, 64
_GREEDY = SamplingParams(temperature=0.0)
_LONGEST_SEQUENCE = 2048 + 128


class OurEngine:
    """A loaded backend and `max_sequences` sequences, each with pages of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._path = Path(args.file)
        wishes = LoadWishes(
            backend=args.backend,
            precision=args.precision,
            activations=args.activations,
            kv_dtype="auto",
            device=torch.device("cpu"),
            num_threads=args.threads,
            step_tokens=STEP_TOKENS,
            free_bytes=2**40,
            library_folder=Path(args.library_folder),
        )
        with read_gguf(self._path) as file:
            self._loaded = load_backend(file, wishes, lambda _text, _share: None)
        self._backend = self._loaded.backend
        self._block_size = self._backend.kv_layout.block_size
        self._blocks_each = -(-_LONGEST_SEQUENCE // self._block_size)
        self._backend.attach_kv(args.max_sequences * self._blocks_each)
        self._filled = [0] * args.max_sequences

    def facts(self) -> dict[str, object]:
        loaded = self._loaded
        return {
            "backend": loaded.backend_name,
            "precision": loaded.precision,
            "kv_dtype": loaded.kv_dtype,
            "weights_bytes": loaded.weights_bytes,
            "linear_parameters": self._linear_parameters(),
        }

    def _linear_parameters(self) -> int:
        """Parameters of the layers' matrices: what every token of a prompt is multiplied with."""
        with read_gguf(self._path) as file:
            return sum(
                tensor.num_elements
                for name, tensor in file.tensors.items()
                if name.startswith("blk.") and len(tensor.shape) == 2
            )

    def prepare_decode(self, batch: int, context: int) -> dict[str, object]:
        """Compute the contexts that decode starts from, once."""
        for index in range(batch):
            if self._filled[index] < context:
                self._compute(index, _random_ids(context))
                self._filled[index] = context
        self._wait_for_memory(batch)
        return {}

    def decode(self, batch: int, context: int, steps: int) -> float:
        """Tokens per second of `steps` steps from `context` on, the choice of each token included."""
        self._decode_s(batch, context, _WARM_UP_STEPS)
        return tokens_per_s(lambda: self._decode_s(batch, context, steps), batch * steps)

    def _wait_for_memory(self, num_sequences: int) -> None:
        """The pool's memory is given while nobody works, in seconds or, by some hosts, much longer."""
        if isinstance(self._backend, CommittedMemory):
            last_block = (num_sequences - 1) * self._blocks_each
            while self._backend.num_committed_blocks <= last_block:
                time.sleep(0.05)

    def prepare_prefill(self, tokens: int) -> dict[str, object]:
        self._compute(0, _random_ids(tokens))
        return {}

    def prefill(self, tokens: int) -> float:
        """Tokens per second of a prompt of `tokens` in a fresh context, in steps of STEP_TOKENS."""
        self._compute(0, _random_ids(_WARM_UP_TOKENS))
        return tokens_per_s(lambda: self._compute(0, _random_ids(tokens)), tokens)

    def tokenize(self, text: str) -> list[int]:
        with read_gguf(self._path) as file:
            return tokenizer_from_gguf(file).encode(text, parse_special=False)

    def save_logits(self, prompts: list[list[int]], path: str) -> int:
        return save_logits(self._all_logits, prompts, path)

    def nll(self, token_ids: list[int], window: int) -> list[float]:
        return list(nll_of_windows(self._all_logits, token_ids, window))

    def _decode_s(self, batch: int, context: int, steps: int) -> float:
        token_ids = _random_ids(batch)
        spent_s = 0.0
        for step in range(steps):
            run = self._ready([(i, [token_ids[i]], context + step) for i in range(batch)])
            started_s = time.perf_counter()
            token_ids = run()
            spent_s += time.perf_counter() - started_s
        return spent_s

    def _compute(self, index: int, token_ids: list[int]) -> float:
        """Run a prompt from position 0. Returns the seconds spent in the backend."""
        spent_s = 0.0
        for start in range(0, len(token_ids), STEP_TOKENS):
            chunk = token_ids[start : start + STEP_TOKENS]
            is_last = start + STEP_TOKENS >= len(token_ids)
            run = self._ready([(index, chunk, start)], wants_token=is_last)
            started_s = time.perf_counter()
            run()
            spent_s += time.perf_counter() - started_s
        return spent_s

    def _ready(
        self, work: list[tuple[int, list[int], int]], *, wants_token: bool = True
    ) -> Callable[[], list[int]]:
        """The engine's call for a step, as a server of that backend makes it; returns the best tokens."""
        batch, backend = self._batch(work, wants_token=wants_token), self._backend
        if isinstance(backend, CpuBackend):
            step = build_step(batch.sequences, block_size=self._block_size)
            return lambda: _first(backend.step(step).best.ids)
        inputs = build_inputs(batch, block_size=self._block_size)
        return lambda: _best(backend.forward(inputs))

    def _all_logits(self, token_ids: list[int]) -> np.ndarray:
        batch = self._batch([(0, list(token_ids), 0)])
        inputs = build_inputs(batch, block_size=self._block_size)
        every_row = ForwardInputs(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            slots=inputs.slots,
            ragged=inputs.ragged,
            output_rows=torch.arange(len(token_ids)),
            prompt_lens=inputs.prompt_lens,
            num_candidates=1,
            wants_logits=True,
            wants_hidden=False,
        )
        logits = self._backend.forward(every_row).logits
        assert logits is not None
        return logits.float().numpy()

    def _batch(self, work: list[tuple[int, list[int], int]], *, wants_token: bool = True) -> Batch:
        """A step; one new token is a generated one, several are a prompt's."""
        sequences = []
        for index, new_token_ids, num_computed in work:
            first = index * self._blocks_each
            sequences.append(
                ScheduledSequence(
                    sequence_id=SequenceId(index),
                    new_token_ids=tuple(new_token_ids),
                    num_computed_tokens=num_computed,
                    block_table=tuple(BlockId(first + block) for block in range(self._blocks_each)),
                    known_token_ids=(),
                    num_prompt_tokens=num_computed + len(new_token_ids) if len(new_token_ids) > 1 else 0,
                    sampling=_GREEDY if wants_token else None,
                )
            )
        return Batch(sequences=tuple(sequences))


def _best(outputs: ForwardOutputs) -> list[int]:
    return [] if outputs.candidates is None else _first(outputs.candidates.ids)


def _first(ids: NDArray[np.int32] | torch.Tensor) -> list[int]:
    tokens: list[int] = ids[:, 0].tolist() if len(ids) else []
    return tokens


def _random_ids(num_tokens: int) -> list[int]:
    return [random.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(num_tokens)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--activations", default="auto")
    parser.add_argument("--library-folder", required=True)
    parser.add_argument("--max-sequences", type=int, default=32)
    engine = OurEngine(parser.parse_args())
    serve(
        {
            "facts": engine.facts,
            "prepare_decode": engine.prepare_decode,
            "decode": engine.decode,
            "prepare_prefill": engine.prepare_prefill,
            "prefill": engine.prefill,
            "tokenize": engine.tokenize,
            "save_logits": engine.save_logits,
            "nll": engine.nll,
        }
    )


if __name__ == "__main__":
    main()
