"""How near each engine's numbers are to float32 on the same file, and how well it foretells a text.

The reference is our own plain torch backend in float32 on the same file, which our tests hold to an
independent implementation.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.engines import LLAMA_Q4_0, LLAMA_Q4_1, OURS, OURS_INT8, REFERENCE, Bench
from benchmarks.results import Part

LOGIT_ERROR = "mean relative logit error, %"
DIVERGENCE = "mean KL divergence, nats/1000"
AGREEMENT = "same best token, %"
PERPLEXITY = "perplexity"
_WINDOW = 512
_TEXTS = Path(__file__).parent / "texts"


def run_quality(bench: Bench, part: Part) -> None:
    """Nothing here depends on time: one pass is enough."""
    with tempfile.TemporaryDirectory() as folder, bench.start(REFERENCE) as reference:
        reference.wait_ready()
        prompts = [reference.call("tokenize", text=line) for line in _prompts()]
        text_ids = reference.call("tokenize", text=(_TEXTS / "perplexity.txt").read_text())
        part.notes.append(
            f"{len(prompts)} prompts of {sum(map(len, prompts))} tokens; "
            f"perplexity over {len(text_ids)} tokens in windows of {_WINDOW}"
        )
        exact_path = f"{folder}/reference.npy"
        reference.call("save_logits", prompts=prompts, path=exact_path)
        part.add(
            REFERENCE, PERPLEXITY, _perplexity(*reference.call("nll", token_ids=text_ids, window=_WINDOW))
        )
        exact = np.load(exact_path)
        for name in (OURS, OURS_INT8, LLAMA_Q4_1, LLAMA_Q4_0):
            with bench.start(name) as worker:
                worker.wait_ready()
                path = f"{folder}/logits.npy"
                worker.call("save_logits", prompts=prompts, path=path)
                compare(part, name, exact, np.load(path))
                total, count = worker.call("nll", token_ids=text_ids, window=_WINDOW)
                part.add(name, PERPLEXITY, _perplexity(total, count))


def _prompts() -> list[str]:
    return (_TEXTS / "prompts.txt").read_text().splitlines()


def _perplexity(total_nll: float, count: int) -> float:
    return float(np.exp(total_nll / count))


def compare(part: Part, name: str, exact: np.ndarray, found: np.ndarray) -> None:
    """Row by row, one row a position: |found - exact| / |exact| in the Euclidean norm, averaged."""
    errors = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
    part.add(name, LOGIT_ERROR, 100 * float(errors.mean()))
    exact_logs, found_logs = _log_softmax(exact), _log_softmax(found)
    divergence = (np.exp(exact_logs) * (exact_logs - found_logs)).sum(axis=1)
    part.add(name, DIVERGENCE, 1000 * float(divergence.mean()))
    part.add(name, AGREEMENT, 100 * float((exact.argmax(axis=1) == found.argmax(axis=1)).mean()))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_probabilities: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probabilities
