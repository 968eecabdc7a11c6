"""Many short texts of a GGUF array at once: vocabularies hold hundreds of thousands. Knows lengths and UTF-8.

A text is 8 bytes of length and its bytes. Here the places of all lengths are found together, by the seven
zeros that end each, and the texts are decoded as one.
"""

import numpy as np
from numpy.typing import NDArray

_LENGTH_BYTES = 8
_LONGEST = 255
# A window has room for a text per 263 bytes at least; one with far fewer was made to be slow.
_LEAST_SHARE = 4096
_NO_WORDS = np.empty(0, np.uint64)
# Put between texts, so that they can be decoded as one: a noncharacter, so in no honest text.
_BETWEEN = "\U0010ffff"
_BETWEEN_BYTES = np.frombuffer(_BETWEEN.encode(), np.uint8)


def read_short_texts(
    data: memoryview, count: int, *, window_bytes: int = 1 << 20
) -> tuple[list[str], int] | None:
    """Return `count` texts from the start of `data` and the bytes they take.

    They are searched for in windows of `window_bytes`. None where one is empty, longer than 255 bytes, no
    UTF-8, cut off or otherwise unusual: whoever reads them one by one can say which.
    """
    texts: list[str] = []
    position = 0
    while len(texts) < count:
        window = np.frombuffer(data[position : position + window_bytes], np.uint8)
        starts = _complete_starts(window)[: count - len(texts)]
        is_last = len(starts) == count - len(texts)
        if not len(starts) or (not is_last and len(starts) < window_bytes // _LEAST_SHARE):
            return None
        end = int(starts[-1]) + _LENGTH_BYTES + int(window[starts[-1]])
        found = _decoded(window[:end], starts)
        if found is None:
            return None
        texts += found
        position += end
    return texts, position


def _complete_starts(window: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where the texts begin that follow one another from the window's start and end within it."""
    found = [
        np.flatnonzero(_words(window, phase) - np.uint64(1) < _LONGEST) * _LENGTH_BYTES + phase
        for phase in range(_LENGTH_BYTES)
    ]
    starts = np.sort(np.concatenate(found))
    ends = starts + _LENGTH_BYTES + window[starts]
    follows = np.append(0, ends)[: len(starts)] == starts
    is_good = follows & (ends <= len(window))
    return starts if is_good.all() else starts[: int(is_good.argmin())]


def _words(window: NDArray[np.uint8], phase: int) -> NDArray[np.uint64]:
    num_words = (len(window) - phase) // _LENGTH_BYTES
    return window[phase : phase + num_words * _LENGTH_BYTES].view("<u8") if num_words > 0 else _NO_WORDS


def _decoded(window: NDArray[np.uint8], starts: NDArray[np.int64]) -> list[str] | None:
    joined = window.copy()
    is_kept = np.ones(len(window), np.bool_)
    for offset in range(_LENGTH_BYTES):
        if offset < len(_BETWEEN_BYTES):
            joined[starts + offset] = _BETWEEN_BYTES[offset]
        else:
            is_kept[starts + offset] = False
    try:
        texts = joined[is_kept].tobytes().decode().split(_BETWEEN)[1:]
    except UnicodeDecodeError:
        return None
    return texts if len(texts) == len(starts) else None
