"""Predicts how long a step takes, learning from those that were. Knows counts; knows no device."""

from dataclasses import dataclass
from operator import mul

# What each coefficient multiplies is brought to about 1, so that one ridge suits all.
_SCALES = (1.0, 1 / 64, 1 / 8, 1 / 2**13, 1 / 2**17, 1.0)
_NUM_FEATURES = len(_SCALES)
_FORGETTING = 0.995  # of the weight of older steps, at each new one: about 200 steps count
_RIDGE = 1e-3
_SOLVE_EVERY = 8  # steps, where nobody asks for a prediction
_OUTLIER = 3.0  # a step this many times slower than expected counts for less: something else was going on


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What a step's time depends on."""

    num_streams: float = 0  # sequences with one new token
    context_tokens: float = 0  # tokens of earlier steps that are read back, once for each sequence
    prompt_tokens: float = 0
    prompt_pairs: float = 0  # of a prompt's new token and a token before it
    prompt_passes: float = 0  # through the network: 1 for any prompt tokens, less for some of its layers

    def __add__(self, other: "StepLoad") -> "StepLoad":
        """Both in one step. Prompt tokens of the same layers pass together."""
        return StepLoad(
            num_streams=self.num_streams + other.num_streams,
            context_tokens=self.context_tokens + other.context_tokens,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            prompt_pairs=self.prompt_pairs + other.prompt_pairs,
            prompt_passes=max(self.prompt_passes, other.prompt_passes),
        )

    def __mul__(self, share: float) -> "StepLoad":
        """The load of a share of the network's layers."""
        return StepLoad(
            num_streams=share * self.num_streams,
            context_tokens=share * self.context_tokens,
            prompt_tokens=share * self.prompt_tokens,
            prompt_pairs=share * self.prompt_pairs,
            prompt_passes=share * self.prompt_passes,
        )

    @property
    def features(self) -> tuple[float, ...]:
        raw = (
            1.0,
            self.prompt_tokens,
            self.num_streams,
            self.context_tokens,
            self.prompt_pairs,
            self.prompt_passes,
        )
        return tuple(value * scale for value, scale in zip(raw, _SCALES, strict=True))


class StepTimeModel:
    """Seconds = fixed + a * prompt tokens + b * streams + c * context tokens + d * prompt pairs, all >= 0.

    Where there are prompt tokens, another fixed part: some devices prepare their weights for many rows.
    Least squares with exponential forgetting, over the normal equations; the feature with the lowest
    coefficient is left out until none is below zero.
    """

    def __init__(self) -> None:
        self._gram = [[_RIDGE if i == j else 0.0 for j in range(_NUM_FEATURES)] for i in range(_NUM_FEATURES)]
        self._moments = [0.0] * _NUM_FEATURES
        self._coefficients = [0.0] * _NUM_FEATURES
        self._is_solved = True
        self.num_observed = 0

    def predict_s(self, load: StepLoad) -> float:
        """Seconds that a step of this load is expected to take."""
        self._solve()
        return self.expected_s(load)

    def expected_s(self, load: StepLoad) -> float:
        """The same, from what was known a few steps ago."""
        expected_s: float = sum(map(mul, self._coefficients, load.features))
        return expected_s

    def observe(self, load: StepLoad, step_s: float) -> None:
        """Learn from one step."""
        if self.num_observed % _SOLVE_EVERY == 0:
            self._solve()
        expected_s = self.expected_s(load)
        is_outlier = self.num_observed >= _NUM_FEATURES and step_s > _OUTLIER * expected_s > 0
        weight = _OUTLIER * expected_s / step_s if is_outlier else 1.0
        self.num_observed += 1
        features = load.features
        for i, x in enumerate(features):
            share = weight * x
            row = [_FORGETTING * g + share * y for g, y in zip(self._gram[i], features, strict=True)]
            row[i] += (1 - _FORGETTING) * _RIDGE  # what is forgotten of the ridge
            self._gram[i] = row
            self._moments[i] = _FORGETTING * self._moments[i] + weight * x * step_s
        self._is_solved = False

    def _solve(self) -> None:
        if self._is_solved:
            return
        self._is_solved = True
        used = list(range(_NUM_FEATURES))
        while True:
            found = _solved([[self._gram[i][j] for j in used] + [self._moments[i]] for i in used])
            if min(found) >= 0:
                break
            used.pop(found.index(min(found)))  # what would cost less than nothing costs nothing
        self._coefficients = [0.0] * _NUM_FEATURES
        for i, coefficient in zip(used, found, strict=True):
            self._coefficients[i] = coefficient


def _solved(rows: list[list[float]]) -> list[float]:
    """Gauss-Jordan elimination of a positive definite system: each row has its right side at the end."""
    for i, pivot in enumerate(rows):
        scale = 1.0 / pivot[i]
        rows[i] = pivot = [scale * value for value in pivot]
        for j, row in enumerate(rows):
            if j != i and row[i]:
                factor = row[i]
                rows[j] = [value - factor * other for value, other in zip(row, pivot, strict=True)]
    return [row[-1] for row in rows]
