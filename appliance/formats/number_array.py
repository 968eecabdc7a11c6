"""Questions about a long array of numbers, answered at once: vocabularies have hundreds of thousands."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]  # Any: of the file's own type


def as_bytes(numbers: Numbers) -> bytes:
    """Return a byte per number. Raises ValueError for one that is none."""
    if numbers.size and not 0 <= numbers.min() <= numbers.max() <= 255:
        raise ValueError("numbers from 0 to 255 fit in bytes")
    return numbers.astype(np.uint8).tobytes()


def has_nan(numbers: Numbers) -> bool:
    return bool(np.isnan(numbers).any())


def falls(numbers: Sequence[float] | Numbers, is_counted: bytes) -> bool:
    """Whether every number that counts (its byte is not 0) is below the one before that counts."""
    counted = np.asarray(numbers, np.float64)[np.frombuffer(is_counted, np.bool_)]
    return bool((counted[1:] < counted[:-1]).all())
