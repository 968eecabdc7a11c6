"""What follows in a file is asked for before it is used, once, and never past the file's end."""

import mmap
from pathlib import Path

import pytest

from appliance.formats.read_ahead import ReadAhead

MIB = 1 << 20
SIZE = 200 * MIB + 100


class Mapping(mmap.mmap):
    """Notes what is asked of the system instead of asking."""

    asked: list[tuple[int, int]]

    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
        assert option == mmap.MADV_WILLNEED
        assert start % mmap.PAGESIZE == 0
        self.asked.append((start, start + length))


@pytest.fixture
def mapping(tmp_path: Path) -> Mapping:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(SIZE)
    with path.open("rb") as file:
        found = Mapping(file.fileno(), 0, access=mmap.ACCESS_READ)
    found.asked = []
    return found


def test_a_file_used_in_order_is_asked_for_once(mapping: Mapping) -> None:
    ahead = ReadAhead(mapping)
    for start in range(0, SIZE, 3 * MIB + 7):
        end = min(start + 3 * MIB + 7, SIZE)
        ahead.use(start, end)
        assert mapping.asked[-1][1] >= min(end + 40 * MIB, SIZE)
    assert mapping.asked[0][0] == 0
    assert mapping.asked[-1][1] == SIZE
    assert len(mapping.asked) < 12
    for (_, end), (start, _) in zip(mapping.asked, mapping.asked[1:], strict=False):
        assert 0 <= end - start < mmap.PAGESIZE


def test_a_jump_is_followed_both_ways(mapping: Mapping) -> None:
    ahead = ReadAhead(mapping)
    ahead.use(150 * MIB + 5, 151 * MIB)
    ahead.use(5, MIB)
    assert [start for start, _ in mapping.asked] == [150 * MIB, 0]
    ahead.use(MIB, 2 * MIB)
    assert len(mapping.asked) == 2


def test_a_tensor_larger_than_what_is_read_ahead_is_asked_for_whole(mapping: Mapping) -> None:
    ReadAhead(mapping).use(10, 190 * MIB)
    assert mapping.asked == [(0, SIZE)]
