"""How long an engine is watched before its speed is told. Runs in the environments of the peers too."""

from collections.abc import Callable

# A fast engine's single go is over before the machine's disturbances average out.
_LEAST_S = 0.4


def tokens_per_s(run: Callable[[], float], num_tokens: int) -> float:
    """Repeat `run`, which computes `num_tokens` and returns its seconds, for at least 0.4 s in all."""
    spent_s, num_runs = 0.0, 0
    while spent_s < _LEAST_S:
        spent_s += run()
        num_runs += 1
    return num_runs * num_tokens / spent_s
