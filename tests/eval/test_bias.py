"""A calibration set against recorded traffic: like it, unlike it, too little to say."""

import numpy as np

from appliance.eval.bias import compare


def prompts(
    seed: int, *, low: int = 0, high: int = 400, length: int = 50, count: int = 80
) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    # Few tokens are frequent and many rare, as in language.
    return [(low + (high - low) * rng.power(0.3, length)).astype(int).tolist() for _ in range(count)]


def test_a_set_of_the_same_kind_passes() -> None:
    found = compare(prompts(1), prompts(2))
    assert found is not None
    assert found.warnings == ()


def test_a_set_of_other_words_is_noticed() -> None:
    found = compare(prompts(1, low=300, high=900), prompts(2))
    assert found is not None
    assert len(found.warnings) == 1
    assert "tokens are unlike" in found.warnings[0]


def test_a_set_of_other_lengths_is_noticed() -> None:
    found = compare(prompts(1, length=300, count=20), prompts(2))
    assert found is not None
    assert found.warnings == ("its texts have 300 tokens at the median, the traffic's 50",)


def test_too_few_tokens_say_nothing() -> None:
    assert compare(prompts(1, count=3), prompts(2)) is None
    assert compare(prompts(1), prompts(2, count=1)) is None
