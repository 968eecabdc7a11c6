"""How well logits foretell a text. numpy only: runs in the environments of the peers too."""

from collections.abc import Callable, Sequence

import numpy as np

AllLogits = Callable[[Sequence[int]], np.ndarray]  # token ids (T) -> float32 (T, V), of a fresh context


def nll_of_windows(all_logits: AllLogits, token_ids: Sequence[int], window: int) -> tuple[float, int]:
    """Sum of -log p over every token but the first of each window, and how many those are."""
    total, count = 0.0, 0
    for start in range(0, len(token_ids), window):
        ids = token_ids[start : start + window]
        if len(ids) < 2:
            break
        logits = all_logits(ids)[:-1].astype(np.float64)
        highest = logits.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(logits - highest).sum(axis=1)) + highest[:, 0]
        total += float((log_sums - logits[np.arange(len(ids) - 1), ids[1:]]).sum())
        count += len(ids) - 1
    return total, count


def save_logits(all_logits: AllLogits, prompts: Sequence[Sequence[int]], path: str) -> int:
    """Write the logits of every position of every prompt, one after another. Returns the number of rows."""
    rows = np.concatenate([all_logits(ids) for ids in prompts])
    np.save(path, rows)
    return len(rows)
