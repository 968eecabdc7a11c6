"""Whether a calibration set is like the traffic that a machine really sees: its tokens and its lengths."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

# Fewer tokens than these say nothing about a distribution.
LEAST_TOKENS = 500
# Beyond the traffic's difference from itself by this, the set is another kind of text.
_TOLERATED = 1.5
_TOLERATED_LENGTH = 4.0
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetComparison:
    """A set against traffic. `divergence` (Jensen-Shannon, in bits) of tokens, and of half the traffic from
    the other half, for as many tokens each; median lengths in tokens."""

    divergence: float
    own_divergence: float
    set_length: float
    traffic_length: float

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is unlike, in words; empty where the set will do."""
        found = []
        if self.divergence > _TOLERATED * self.own_divergence:
            found.append(
                f"its tokens are unlike the recorded traffic's: {self.divergence:.2f} bits apart, where half "
                f"the traffic is {self.own_divergence:.2f} from the other half"
            )
        ratio = self.set_length / self.traffic_length
        if not 1 / _TOLERATED_LENGTH <= ratio <= _TOLERATED_LENGTH:
            found.append(
                f"its texts have {self.set_length:.0f} tokens at the median, the traffic's "
                f"{self.traffic_length:.0f}"
            )
        return tuple(found)


def compare(prompts: Prompts, traffic: Prompts) -> SetComparison | None:
    """Compare a set with recorded traffic; None where either has too few tokens to say anything."""
    ours, halves = _joined(prompts), (_joined(traffic[::2]), _joined(traffic[1::2]))
    size = min(len(ours), *map(len, halves))
    if size < LEAST_TOKENS:
        return None
    samples = [_spread(tokens, size) for tokens in (ours, *halves)]
    return SetComparison(
        divergence=_divergence(samples[0], samples[1]),
        own_divergence=_divergence(samples[1], samples[2]),
        set_length=median(map(len, prompts)),
        traffic_length=median(map(len, traffic)),
    )


def _joined(prompts: Iterable[Sequence[int]]) -> list[int]:
    return [token for prompt in prompts for token in prompt]


def _spread(tokens: Sequence[int], size: int) -> Counter[int]:
    """Count `size` tokens from all over."""
    return Counter(tokens[i * len(tokens) // size] for i in range(size))


def _divergence(left: Counter[int], right: Counter[int]) -> float:
    """Jensen-Shannon, in bits, of two counts of equal sums."""
    total = sum(left.values())
    bits = 0.0
    for token in left.keys() | right.keys():
        mean = (left[token] + right[token]) / 2
        bits += sum(c * math.log2(c / mean) for c in (left[token], right[token]) if c) / 2
    return bits / total
