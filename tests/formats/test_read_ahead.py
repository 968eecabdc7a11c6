"""What follows in a file is asked for before it is used, once, never past the file's end, and by a thread."""

import mmap
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from appliance.formats.read_ahead import BackgroundAdvice, ReadAhead

MIB = 1 << 20
SIZE = 200 * MIB + 100
WAIT_S = 10


@pytest.fixture
def mapping(tmp_path: Path) -> mmap.mmap:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(SIZE)
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class Asked(list[tuple[int, int]]):
    """Notes what is asked for, from where to where."""

    def __call__(self, place: int, num_bytes: int) -> None:
        assert place % mmap.PAGESIZE == 0
        self.append((place, place + num_bytes))


def test_a_file_used_in_order_is_asked_for_once(mapping: mmap.mmap) -> None:
    asked = Asked()
    ahead = ReadAhead(mapping, asked)
    for start in range(0, SIZE, 3 * MIB + 7):
        end = min(start + 3 * MIB + 7, SIZE)
        ahead.use(start, end)
        assert asked[-1][1] >= min(end + 40 * MIB, SIZE)
    assert asked[0][0] == 0
    assert asked[-1][1] == SIZE
    assert len(asked) < 12
    for (_, end), (start, _) in pairwise(asked):
        assert 0 <= end - start < mmap.PAGESIZE


def test_a_jump_is_followed_both_ways(mapping: mmap.mmap) -> None:
    asked = Asked()
    ahead = ReadAhead(mapping, asked)
    ahead.use(150 * MIB + 5, 151 * MIB)
    ahead.use(5, MIB)
    assert [start for start, _ in asked] == [150 * MIB, 0]
    ahead.use(MIB, 2 * MIB)
    assert len(asked) == 2


def test_a_tensor_larger_than_what_is_read_ahead_is_asked_for_whole(mapping: mmap.mmap) -> None:
    asked = Asked()
    ReadAhead(mapping, asked).use(10, 190 * MIB)
    assert asked == [(0, SIZE)]


def test_a_mapping_can_be_used_to_its_end_and_let_go_of(mapping: mmap.mmap) -> None:
    ahead = ReadAhead(mapping)
    for start in range(0, SIZE, 32 * MIB):
        ahead.use(start, min(start + 32 * MIB, SIZE))
    assert mapping[-1] == 0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def test_who_asks_does_not_wait_for_the_system(gate: threading.Event) -> None:
    passed_on = Asked()
    threads = set()

    def slow(place: int, num_bytes: int) -> None:
        assert gate.wait(WAIT_S)
        threads.add(threading.current_thread())
        passed_on(place, num_bytes)

    advice = BackgroundAdvice(slow, SIZE)
    advice(0, 5 * MIB)
    advice(5 * MIB, MIB)
    assert passed_on == []
    gate.set()
    advice.close()
    assert passed_on == [(0, 2 * MIB), (2 * MIB, 4 * MIB), (4 * MIB, 5 * MIB), (5 * MIB, 6 * MIB)]
    assert threading.current_thread() not in threads


def test_the_thread_ends_with_the_file_and_starts_anew_for_a_jump_back() -> None:
    passed_on = Asked()
    done = threading.Event()

    def note(place: int, num_bytes: int) -> None:
        passed_on(place, num_bytes)
        if place + num_bytes == SIZE:
            done.set()

    advice = BackgroundAdvice(note, SIZE)
    before = threading.active_count()
    advice(SIZE - SIZE % mmap.PAGESIZE, SIZE % mmap.PAGESIZE)
    assert done.wait(WAIT_S)
    for thread in threading.enumerate():
        if thread.name.startswith("read-ahead"):
            thread.join(WAIT_S)
    assert threading.active_count() <= before
    advice(0, MIB)
    advice.close()
    assert passed_on[-1] == (0, MIB)
