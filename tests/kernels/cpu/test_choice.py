"""Choosing tokens natively: masks, cuts and draws against the plain distribution, on every level."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.cpu.library import NativeError, NativeLibrary
from kernels.cpu.native import NativeModel
from kernels.cpu.structs import RowChoice
from oracles.sampling import distribution

Array = NDArray[np.generic]


@pytest.fixture(scope="module")
def models(library: NativeLibrary, rig) -> Iterator[list[NativeModel]]:
    network = rig.network(rig.shape())
    models = [network.native(library, level=level, num_threads=2) for level in library.levels]
    yield models
    for model in models:
        model.close()


def random_logits(size: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)


def mask_of(allowed: Array, size: int, spare_words: int = 0) -> Array:
    bits = np.zeros((-(-size // 32) + spare_words) * 32, np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("size", [1, 7, 31, 32, 33, 100, 131, 1000])
def test_the_likeliest_is_the_first_largest(models: list[NativeModel], size: int) -> None:
    logits = np.random.default_rng(size).integers(-20, 20, size).astype(np.float32)
    for model in models:
        assert model.choose([RowChoice(logits=logits)]) == [int(logits.argmax())], model.level


@pytest.mark.parametrize("size", [7, 33, 131, 1000])
def test_only_allowed_tokens_are_the_likeliest(models: list[NativeModel], size: int) -> None:
    rng, logits = np.random.default_rng(size), random_logits(size)
    for num_allowed in (1, 2, size // 2, size):
        allowed = rng.choice(size, num_allowed, replace=False)
        expected = int(allowed[logits[allowed].argmax()])
        for mask in (mask_of(allowed, size), mask_of(np.append(allowed, size + 31), size, 1)):
            for model in models:
                assert model.choose([RowChoice(logits=logits, mask=mask)]) == [expected], model.level


def test_tokens_beyond_the_mask_are_blocked(models: list[NativeModel]) -> None:
    logits = np.arange(100, dtype=np.float32)
    for model in models:
        assert model.choose([RowChoice(logits=logits, mask=mask_of(np.array([3, 40]), 64))]) == [40]
        drawn = RowChoice(logits=logits, mask=mask_of(np.array([3]), 32), temperature=9.0, number=0.99)
        assert model.choose([drawn]) == [3]


CUTS = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 1.0, "top_k": 150},
    {"temperature": 1.0, "top_k": 100_000},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.5, "top_p": 0.97},
    {"temperature": 1.0, "top_p": 0.05},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 0.7, "min_p": 0.1},
    {"temperature": 1.5, "min_p": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.9, "top_p": 0.99, "min_p": 0.02},
]


@pytest.mark.parametrize("size", [5, 40, 300, 1031])
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_every_allowed_token_gets_its_share(
    models: list[NativeModel], cuts: dict[str, float], size: int
) -> None:
    """Evenly spread numbers fall on each token as often as its share says, but for its two borders."""
    logits, count = random_logits(size, size), 500
    allowed = np.flatnonzero(np.random.default_rng(size).random(size) < 0.8)
    for tokens, mask in ((np.arange(size), None), (allowed, mask_of(allowed, size))):
        shares = distribution(logits[tokens].tolist(), **cuts)
        expected = {int(tokens[place]): share for place, share in shares.items()}
        for model in models:
            rows = [
                RowChoice(logits=logits, mask=mask, number=(i + 0.5) / count, **cuts) for i in range(count)
            ]
            found = model.choose(rows)
            assert found == sorted(found)  # a draw follows the vocabulary's order
            assert set(found) <= set(expected)
            shares_found = np.bincount(found, minlength=size)
            for token, share in expected.items():
                assert abs(shares_found[token] - share * count) <= 1.05, (model.level, token)


def test_a_nucleus_keeps_equal_weights_together(models: list[NativeModel]) -> None:
    logits = np.zeros(101, np.float32)
    for model in models:
        rows = [
            RowChoice(logits=logits, temperature=1.0, top_p=0.01, number=n / 50 + 0.001) for n in range(50)
        ]
        assert len(set(model.choose(rows))) == 50


def test_a_tiny_temperature_is_greedy(models: list[NativeModel]) -> None:
    logits = np.array([1.0, 30.0, 2.0, -400.0, -np.inf], np.float32)
    for model in models:
        for cuts in CUTS:
            rows = [
                RowChoice(logits=logits, number=n, **{**cuts, "temperature": 1e-6}) for n in (0.0, 0.999999)
            ]
            assert model.choose(rows) == [1, 1]


def test_rows_without_a_finite_best_are_told(models: list[NativeModel]) -> None:
    good = random_logits(50)
    nan, infinite = np.full(50, np.nan, np.float32), good.copy()
    infinite[9] = np.inf
    nothing = mask_of(np.array([], np.int64), 50)
    for model in models:
        for temperature in (0.0, 1.0):
            rows = [
                RowChoice(logits=logits, mask=mask, temperature=temperature, number=0.5)
                for logits, mask in ((nan, None), (infinite, None), (good, nothing), (good, None))
            ]
            found = model.choose(rows)
            assert found[:3] == [-1, -1, -1]
            assert found[3] >= 0


def test_a_row_does_not_depend_on_its_neighbours(models: list[NativeModel]) -> None:
    rows = [
        RowChoice(logits=random_logits(size, size), temperature=1.0, top_p=0.9, number=size / 700)
        for size in (5, 600, 33, 131, 1, 64, 257)
    ]
    for model in models:
        assert model.choose(rows) == [model.choose([row])[0] for row in rows]


def test_what_cannot_be_read_is_refused(models: list[NativeModel]) -> None:
    logits = random_logits(40)
    for bad in (
        RowChoice(logits=logits.astype(np.float64)),
        RowChoice(logits=logits[::2]),
        RowChoice(logits=logits[:0]),
        RowChoice(logits=logits, number=1.0),
        RowChoice(logits=logits, temperature=float("nan")),
        RowChoice(logits=logits, mask=np.zeros(2, np.int64)),
        RowChoice(logits=logits, mask=np.zeros(0, np.uint32)),
    ):
        with pytest.raises(NativeError):
            models[0].choose([RowChoice(logits=logits), bad])
    assert models[0].choose([]) == []
