"""Short texts read at once equal those read one by one, and whatever is unusual is left to the latter."""

import random

import pytest

from appliance.formats.string_array import read_short_texts


def stored(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(8, "little") + text for text in texts)


def read(data: bytes, count: int) -> tuple[list[str], int] | None:
    return read_short_texts(memoryview(data), count)


def test_short_texts_come_in_order_with_the_bytes_they_take() -> None:
    texts = ["a", "\u2581the", "ż" * 127, "\U0001f600", "x" * 255, "\0a\0", "\ufeff"]
    data = stored(*(text.encode() for text in texts))
    assert read(data + b"what follows", len(texts)) == (texts, len(data))
    assert read(data, 3) == (texts[:3], len(stored(*(text.encode() for text in texts[:3]))))
    assert read(data, 0) == ([], 0)


def test_texts_cross_windows() -> None:
    rng = random.Random(3)
    texts = ["".join(rng.choices("aż\u2581\U0001f600\0", k=rng.randint(1, 50))) for _ in range(500)]
    data = stored(*(text.encode() for text in texts))
    assert read_short_texts(memoryview(data), len(texts), window_bytes=300) == (texts, len(data))


@pytest.mark.parametrize(
    "unusual",
    [b"", b"y" * 256, b"\xff", b"caf\xc3", "\U0010ffff".encode(), b"\0" * 8 + b"a"],
    ids=["empty", "long", "no UTF-8", "cut character", "the mark between", "many zeros"],
)
def test_an_unusual_text_is_left_to_others_or_read_rightly(unusual: bytes) -> None:
    found = read(stored(b"abc", unusual, b"def"), 3)
    assert found is None or found[0] == ["abc", unusual.decode(), "def"]


@pytest.mark.parametrize("cut", [1, 5, 11, 12, 20])
def test_texts_that_are_cut_off_are_left_to_others(cut: int) -> None:
    data = stored(b"abc", b"defg")
    assert read(data[:-cut], 2) is None


def test_a_character_is_not_joined_over_two_texts() -> None:
    assert read(stored(b"caf\xc3", b"\xa9"), 2) is None
