"""Asks the system for what follows in a mapped file, so that reading goes on while weights are packed.

Without that every new page waits for the disk, a few at a time. Knows places in a file; knows no format.
"""

import mmap
from contextlib import suppress

_AHEAD_BYTES = 64 << 20
# Asked for at once: fewer calls, and still well ahead.
_STEP_BYTES = 16 << 20
# Windows has no such advice.
_WILL_NEED: int | None = getattr(mmap, "MADV_WILLNEED", None)


class ReadAhead:
    """Follows whoever uses a mapping from its start to its end; jumps are followed too."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._start = self._end = 0  # asked for last

    def use(self, start: int, end: int) -> None:
        """Say that bytes `start` to `end` are about to be read."""
        size = len(self._data)
        wanted = min(end + _AHEAD_BYTES, size)
        is_after = self._start <= start <= self._end
        if is_after and (wanted <= self._end or wanted < min(self._end + _STEP_BYTES, size)):
            return
        begin = self._end if is_after else start
        begin -= begin % mmap.PAGESIZE
        if _WILL_NEED is not None and begin < wanted:
            with suppress(OSError):  # it was only advice
                self._data.madvise(_WILL_NEED, begin, wanted - begin)
        self._start, self._end = start, wanted
