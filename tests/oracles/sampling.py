"""The distribution that sampling parameters define, in float64 and plain Python. Knows no torch."""

import math
from collections import Counter
from collections.abc import Sequence


def distribution(
    logits: Sequence[float], *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> dict[int, float]:
    """Return {token: probability} of what may be drawn; cuts in the order top-k, top-p, min-p."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    kept = order[:top_k] if top_k else order
    top = logits[kept[0]]
    weights = {token: math.exp((logits[token] - top) / temperature) for token in kept}
    total = math.fsum(weights.values())
    nucleus: dict[int, float] = {}
    for token in kept:
        nucleus[token] = weights[token] / total
        if math.fsum(nucleus.values()) >= top_p:
            break
    least = min_p * max(nucleus.values())
    nucleus = {token: share for token, share in nucleus.items() if share >= least}
    mass = math.fsum(nucleus.values())
    return {token: share / mass for token, share in nucleus.items()}


def penalised(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> list[float]:
    counts = Counter(output)
    changed = []
    for token, logit in enumerate(logits):
        if token in counts or token in prompt:
            logit = logit / repetition if logit > 0 else logit * repetition
        changed.append(logit - presence * (token in counts) - frequency * counts[token])
    return changed


def chi_square(draws: Sequence[int], expected: dict[int, float]) -> float:
    """Pearson's statistic over the tokens expected at least five times, the rest as one."""
    found = Counter(draws)
    rest_found = rest_expected = statistic = 0.0
    for token, share in expected.items():
        count = share * len(draws)
        if count < 5:
            rest_found, rest_expected = rest_found + found[token], rest_expected + count
        else:
            statistic += (found[token] - count) ** 2 / count
    return statistic + ((rest_found - rest_expected) ** 2 / rest_expected if rest_expected else 0.0)
