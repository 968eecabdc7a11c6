"""By what rules and number one row's token is chosen. Knows parameters; no logits."""

import random
from dataclasses import dataclass
from hashlib import blake2b

from appliance.engine.batch import ScheduledSequence

# Below this only the likeliest token is ever drawn, and dividing by it soon overflows float32.
LEAST_TEMPERATURE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """One row's rules; `top_k` 0 for all tokens. A greedy row looks at nothing else."""

    is_greedy: bool
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    number: float = 0.0  # drawn from [0, 1)

    @classmethod
    def of(cls, sequence: ScheduledSequence) -> "RowRules":
        params = sequence.sampling
        assert params is not None
        if params.is_greedy:
            return cls(is_greedy=True)
        return cls(
            is_greedy=False,
            temperature=max(params.temperature, LEAST_TEMPERATURE),
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            number=uniform(params.seed, sequence.num_output_tokens),
        )


def uniform(seed: int | None, index: int) -> float:
    """Return a number in [0, 1): a function of (seed, index) alone, or a fresh one without a seed."""
    if seed is None:
        return random.random()  # noqa: S311  # chooses words, guards nothing
    digest = blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53
