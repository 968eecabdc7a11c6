"""Questions about long arrays, against plain loops."""

import numpy as np
import pytest

from appliance.formats.number_array import as_bytes, falls, has_nan


def test_only_numbers_that_count_must_fall() -> None:
    scores = [5.0, 9.0, 4.0, 4.0, 3.0]
    assert falls(scores, bytes([1, 0, 1, 0, 1]))
    assert not falls(scores, bytes([1, 0, 1, 1, 1]))
    assert not falls(scores, bytes([1, 1, 1, 0, 1]))
    assert falls([], b"")


def test_a_number_that_is_none_is_found() -> None:
    assert has_nan(np.array([1, np.nan], np.float32))
    assert not has_nan(np.array([1, np.inf], np.float32))


def test_numbers_become_bytes_or_are_refused() -> None:
    assert as_bytes(np.array([0, 7, 255], np.int32)) == b"\x00\x07\xff"
    for bad in (-1, 256):
        with pytest.raises(ValueError, match="0 to 255"):
            as_bytes(np.array([bad], np.int32))
