"""llama.cpp under measurement, through its low-level batch interface; run by its own environment's Python.

    python benchmarks/workers/llama_worker.py --file F --threads 2
    python benchmarks/workers/llama_worker.py --file F --quantize-to G --type q4_0

Flash attention is on or off, whichever was faster for the cell when it was prepared.
"""

import argparse
import ctypes
import math
import random
import sys
import time
from collections.abc import Callable

import numpy as np
from llama_cpp import llama_cpp as api
from repeat import tokens_per_s
from scoring import nll_of_windows, save_logits
from worker_loop import serve

_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 300, 20_000
# Its own defaults: tokens of one call, and of one pass through the network.
_BATCH_TOKENS, _PASS_TOKENS = 2048, 512
# To choose between two ways of running a cell: enough to see a difference, not to report one.
_TRIAL_STEPS, _MOST_TRIALS, _TRIAL_BUDGET_S = 8, 3, 2.0
_WARM_UP_STEPS, _WARM_UP_TOKENS = 4, 64
_SPARE_TOKENS = 256
_LOG_WARN, _LOG_ERROR = 3, 4
_FILE_TYPES = {"q4_0": api.LLAMA_FTYPE_MOSTLY_Q4_0, "q8_0": api.LLAMA_FTYPE_MOSTLY_Q8_0}


class Context:
    """One context of a model for `num_sequences` of `length` tokens each, and its batch."""

    def __init__(self, model: object, *, num_sequences: int, length: int, threads: int, flash: bool) -> None:
        params = api.llama_context_default_params()
        params.n_ctx = num_sequences * length
        params.n_seq_max = num_sequences
        params.n_batch, params.n_ubatch = _BATCH_TOKENS, _PASS_TOKENS
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = (
            api.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.kv_unified = num_sequences == 1
        self._context = api.llama_init_from_model(model, params)
        if not self._context:
            raise MemoryError(f"no context for {num_sequences} sequences of {length} tokens")
        self.memory = api.llama_get_memory(self._context)
        self._batch = api.llama_batch_init(_BATCH_TOKENS, 0, 1)

    def run(self, tokens: list[tuple[int, int, int, bool]]) -> float:
        """Compute (token id, position, sequence, wants logits). Returns the seconds it took."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for row, (token_id, position, sequence, wants_logits) in enumerate(tokens):
            batch.token[row] = token_id
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
            batch.logits[row] = wants_logits
        started_s = time.perf_counter()
        code = api.llama_decode(self._context, batch)
        api.llama_synchronize(self._context)
        spent_s = time.perf_counter() - started_s
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        return spent_s

    def run_prompt(self, token_ids: list[int], *, wants_all: bool = False) -> float:
        """Compute a prompt of sequence 0 from position 0. Returns the seconds it took."""
        last = len(token_ids) - 1
        rows = [(token, i, 0, wants_all or i == last) for i, token in enumerate(token_ids)]
        return sum(self.run(rows[i : i + _BATCH_TOKENS]) for i in range(0, len(rows), _BATCH_TOKENS))

    def logits(self, num_rows: int, num_vocab: int) -> np.ndarray:
        pointer = api.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(num_rows * num_vocab,)).reshape(num_rows, -1).copy()

    def close(self) -> None:
        api.llama_batch_free(self._batch)
        api.llama_free(self._context)


class LlamaEngine:
    """A loaded model and one context per cell."""

    def __init__(self, path: str, threads: int) -> None:
        self._threads = threads
        self._model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self._model:
            raise ValueError(f"{path} cannot be loaded")
        self._num_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._contexts: dict[tuple[str, int, int], Context] = {}

    def prepare_decode(self, batch: int, context: int) -> dict[str, object]:
        """Fill contexts with and without flash attention, keep the faster one."""

        def make(flash: bool) -> Context:
            made = self._context(num_sequences=batch, length=context + _SPARE_TOKENS, flash=flash)
            made.run_prompt(_random_ids(context))
            for sequence in range(1, batch):
                api.llama_memory_seq_cp(made.memory, 0, sequence, -1, -1)
            # The first step pays for the copies.
            _decode_s(made, batch, context, 1)
            return made

        return self._keep_faster(
            ("decode", batch, context), make, lambda c: _decode_s(c, batch, context, _TRIAL_STEPS)
        )

    def decode(self, batch: int, context: int, steps: int) -> float:
        """Tokens per second of `steps` steps from `context` on, without the choice of a token."""
        prepared = self._contexts["decode", batch, context]
        _decode_s(prepared, batch, context, _WARM_UP_STEPS)
        return tokens_per_s(lambda: _decode_s(prepared, batch, context, steps), batch * steps)

    def prepare_prefill(self, tokens: int) -> dict[str, object]:
        def make(flash: bool) -> Context:
            made = self._context(num_sequences=1, length=tokens, flash=flash)
            _prefill_s(made, _WARM_UP_TOKENS)
            return made

        return self._keep_faster(("prefill", 1, tokens), make, lambda c: _prefill_s(c, tokens))

    def prefill(self, tokens: int) -> float:
        """Tokens per second of a prompt of `tokens` in a fresh context."""
        prepared = self._contexts["prefill", 1, tokens]
        _prefill_s(prepared, _WARM_UP_TOKENS)
        return tokens_per_s(lambda: _prefill_s(prepared, tokens), tokens)

    def save_logits(self, prompts: list[list[int]], path: str) -> int:
        return save_logits(self._all_logits, prompts, path)

    def nll(self, token_ids: list[int], window: int) -> list[float]:
        return list(nll_of_windows(self._all_logits, token_ids, window))

    def _all_logits(self, token_ids: list[int]) -> np.ndarray:
        context = self._context(num_sequences=1, length=len(token_ids), flash=False)
        context.run_prompt(list(token_ids), wants_all=True)
        rows = context.logits(len(token_ids), self._num_vocab)
        context.close()
        return rows

    def _context(self, *, num_sequences: int, length: int, flash: bool) -> Context:
        return Context(
            self._model,
            num_sequences=num_sequences,
            length=-(-length // 256) * 256,
            threads=self._threads,
            flash=flash,
        )

    def _keep_faster(
        self,
        key: tuple[str, int, int],
        make: Callable[[bool], Context],
        trial: Callable[[Context], float],
    ) -> dict[str, object]:
        made = {flash: make(flash) for flash in (False, True)}
        best_s = {False: math.inf, True: math.inf}
        started_s = time.perf_counter()
        for _ in range(_MOST_TRIALS):
            for flash, context in made.items():
                best_s[flash] = min(best_s[flash], trial(context))
            if time.perf_counter() - started_s > _TRIAL_BUDGET_S:
                break
        is_flash = best_s[True] < best_s[False]
        made[not is_flash].close()
        self._contexts[key] = made[is_flash]
        return {"flash_attention": is_flash}


def _decode_s(context: Context, batch: int, start: int, steps: int) -> float:
    spent_s = 0.0
    for step in range(steps):
        token_ids = _random_ids(batch)
        spent_s += context.run([(token_ids[i], start + step, i, True) for i in range(batch)])
    for sequence in range(batch):
        api.llama_memory_seq_rm(context.memory, sequence, start, -1)
    return spent_s


def _prefill_s(context: Context, tokens: int) -> float:
    api.llama_memory_clear(context.memory, False)
    return context.run_prompt(_random_ids(tokens))


def _random_ids(num_tokens: int) -> list[int]:
    return [random.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(num_tokens)]


def quantize(source: str, target: str, file_type: str) -> None:
    """Requantize a file with llama.cpp's own function, every matrix to the one type."""
    params = api.llama_model_quantize_default_params()
    params.ftype = _FILE_TYPES[file_type]
    params.pure = True
    params.allow_requantize = True
    code = api.llama_model_quantize(source.encode(), target.encode(), params)
    if code != 0:
        raise RuntimeError(f"llama_model_quantize returned {code}")


@api.llama_log_callback
def _log(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    """Warnings and errors alone: a context tells of itself in hundreds of lines."""
    if level in (_LOG_WARN, _LOG_ERROR):
        sys.stderr.write(text.decode("utf-8", "replace"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quantize-to")
    parser.add_argument("--type", choices=tuple(_FILE_TYPES))
    args = parser.parse_args()
    api.llama_log_set(_log, None)
    api.llama_backend_init()
    if args.quantize_to:
        quantize(args.file, args.quantize_to, args.type)
        return
    engine = LlamaEngine(args.file, args.threads)
    serve(
        {
            "prepare_decode": engine.prepare_decode,
            "decode": engine.decode,
            "prepare_prefill": engine.prepare_prefill,
            "prefill": engine.prefill,
            "save_logits": engine.save_logits,
            "nll": engine.nll,
        }
    )


if __name__ == "__main__":
    main()
