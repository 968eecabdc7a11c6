"""OpenVINO GenAI under measurement, on a GGUF file; run by its own environment's Python.

    python benchmarks/workers/openvino_worker.py --file F --threads 2

Its pipeline times itself: the first token's time is a prompt's, the mean after it a token's.
"""

import argparse
import random

import numpy as np
import openvino
import openvino_genai
from repeat import tokens_per_s
from worker_loop import serve

_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 300, 20_000
_WARM_UP_TOKENS = 64


class OpenVinoEngine:
    def __init__(self, path: str, threads: int) -> None:
        self._pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)

    def prepare_decode(self, batch: int, context: int) -> dict[str, object]:
        if batch != 1:
            raise ValueError("only one sequence at a time is measured here")
        self._metrics(context, 4)
        return {}

    def decode(self, batch: int, context: int, steps: int) -> float:
        """Tokens per second of `steps` tokens after a prompt of `context`, the choice included."""

        def run() -> float:
            return steps * float(self._metrics(context, steps + 1).get_tpot().mean) / 1000

        return tokens_per_s(run, batch * steps)

    def prepare_prefill(self, tokens: int) -> dict[str, object]:
        self._metrics(tokens, 1)
        return {}

    def prefill(self, tokens: int) -> float:
        """Tokens per second from a prompt to its first token."""
        self._metrics(_WARM_UP_TOKENS, 1)
        return tokens_per_s(lambda: float(self._metrics(tokens, 1).get_ttft().mean) / 1000, tokens)

    def _metrics(self, num_prompt_tokens: int, num_new_tokens: int) -> openvino_genai.PerfMetrics:
        ids = [random.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(num_prompt_tokens)]
        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens = num_new_tokens
        settings.ignore_eos = True
        settings.do_sample = False
        prompt = openvino.Tensor(np.array([ids], dtype=np.int64))
        result = self._pipeline.generate(prompt, settings)
        if len(result.tokens[0]) != num_new_tokens:
            raise RuntimeError(f"{len(result.tokens[0])} tokens came for {num_new_tokens} asked")
        return result.perf_metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    engine = OpenVinoEngine(args.file, args.threads)
    serve(
        {
            "prepare_decode": engine.prepare_decode,
            "decode": engine.decode,
            "prepare_prefill": engine.prepare_prefill,
            "prefill": engine.prefill,
        }
    )


if __name__ == "__main__":
    main()
