"""Predicts how long a step takes, learning from those that were. Knows counts; knows no device."""

from dataclasses import dataclass

# What each coefficient multiplies is brought to about 1, so that one ridge suits all.
_SCALES = (1.0, 1 / 64, 1 / 8, 1 / 2**13, 1 / 2**17)
_NUM_FEATURES = len(_SCALES)
_FORGETTING = 0.995  # of the weight of older steps, at each new one: about 200 steps count
_RIDGE = 1e-3
_SWEEPS = 3  # from the last solution it is a small way
_OUTLIER = 3.0  # a step this many times slower than expected counts for less: something else was going on


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What a step's time depends on."""

    num_streams: int = 0  # sequences with one new token
    stream_context: int = 0  # tokens that those read back, all together
    prompt_tokens: int = 0
    prompt_pairs: int = 0  # of a prompt's new token and a token before it

    @property
    def features(self) -> tuple[float, ...]:
        raw = (1, self.prompt_tokens, self.num_streams, self.stream_context, self.prompt_pairs)
        return tuple(value * scale for value, scale in zip(raw, _SCALES, strict=True))


class StepTimeModel:
    """Seconds = fixed + a * prompt tokens + b * streams + c * their context + d * prompt pairs, all >= 0.

    Least squares with exponential forgetting over the normal equations, solved by coordinate descent that
    keeps every coefficient from going below zero (Franc, Hlavac, Navara 2005).
    """

    def __init__(self) -> None:
        self._gram = [[_RIDGE if i == j else 0.0 for j in range(_NUM_FEATURES)] for i in range(_NUM_FEATURES)]
        self._moments = [0.0] * _NUM_FEATURES
        self._coefficients = [0.0] * _NUM_FEATURES
        self.num_observed = 0

    def predict_s(self, load: StepLoad) -> float:
        return sum(c * x for c, x in zip(self._coefficients, load.features, strict=True))

    def observe(self, load: StepLoad, step_s: float) -> None:
        """Learn from one step."""
        expected_s = self.predict_s(load)
        is_outlier = self.num_observed >= _NUM_FEATURES and step_s > _OUTLIER * expected_s > 0
        weight = _OUTLIER * expected_s / step_s if is_outlier else 1.0
        self.num_observed += 1
        features = load.features
        for i, x in enumerate(features):
            row = self._gram[i]
            for j, y in enumerate(features):
                row[j] = _FORGETTING * row[j] + weight * x * y
            row[i] += (1 - _FORGETTING) * _RIDGE  # what is forgotten of the ridge
            self._moments[i] = _FORGETTING * self._moments[i] + weight * x * step_s
        for _ in range(_SWEEPS):
            self._sweep()

    def _sweep(self) -> None:
        coefficients = self._coefficients
        for i, row in enumerate(self._gram):
            others = sum(g * c for g, c in zip(row, coefficients, strict=True)) - row[i] * coefficients[i]
            coefficients[i] = max(0.0, (self._moments[i] - others) / row[i])
