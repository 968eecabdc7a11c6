"""Bounds-checked little-endian reads over a mapped file. Knows bytes and field names; knows no format."""

import mmap
import struct

import numpy as np
from numpy.typing import DTypeLike, NDArray

from appliance.errors import BadModelFile
from appliance.formats.string_array import read_short_texts

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ByteCursor:
    """A position in a mapped file. Every read names its field and is compared with the file's size first."""

    def __init__(self, data: mmap.mmap, *, file_name: str) -> None:
        self._data = data
        self._size = len(data)
        self._file_name = file_name
        self.position = 0

    @property
    def num_remaining(self) -> int:
        return self._size - self.position

    def bad(self, message: str) -> BadModelFile:
        """Return the error to raise for this file."""
        return BadModelFile(f"'{self._file_name}': {message}")

    def check_count(self, count: int, *, item_bytes: int, limit: int | None = None, field: str) -> None:
        """Raise BadModelFile unless `count` items of at least `item_bytes` can follow."""
        if limit is not None and count > limit:
            raise self.bad(f"{field} is {count} and the limit is {limit}")
        if count * item_bytes > self.num_remaining:
            raise self.bad(
                f"{field} is {count}, which needs {count * item_bytes} bytes, and {self.num_remaining} "
                "remain: the length exceeds the file; download it again"
            )

    def take(self, num_bytes: int, *, field: str) -> int:
        """Step over `num_bytes` and return where they start. Raises BadModelFile past the end."""
        start = self.position
        if num_bytes > self._size - start:
            raise self.bad(
                f"{field} needs {num_bytes} bytes at offset {start} and {self._size - start} remain: "
                "the length exceeds the file; download it again"
            )
        self.position = start + num_bytes
        return start

    def u32(self, field: str) -> int:
        value: int = _U32.unpack_from(self._data, self.take(4, field=field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack_from(self._data, self.take(8, field=field))[0]
        return value

    def scalar(self, layout: struct.Struct, field: str) -> int | float:
        """Read one number of the given layout."""
        value: int | float = layout.unpack_from(self._data, self.take(layout.size, field=field))[0]
        return value

    def string(self, field: str, *, limit: int | None = None) -> str:
        """Read a 64-bit length and that many bytes of UTF-8. `limit` bounds the length in bytes."""
        num_bytes = self.u64(f"{field} (length)")
        if limit is not None and num_bytes > limit:
            raise self.bad(f"{field} has {num_bytes} bytes and the limit is {limit}")
        start = self.take(num_bytes, field=field)
        return self._text(start, num_bytes, field)

    def strings(self, count: int, field: str) -> tuple[str, ...]:
        """Read `count` strings: all at once where they are short, as those of vocabularies are."""
        found = read_short_texts(memoryview(self._data)[self.position :], count)
        if found is None:
            return self._strings_one_by_one(count, field)
        texts, num_bytes = found
        self.position += num_bytes
        return tuple(texts)

    def _strings_one_by_one(self, count: int, field: str) -> tuple[str, ...]:
        data, size, position = self._data, self._size, self.position
        unpack_length = _U64.unpack_from
        texts: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack_length(data, position)[0]
                if position > size:
                    raise self.bad(f"{field} [{len(texts)}] ends {position - size} bytes past the file's end")
                texts.append(str(data[start:position], "utf-8"))
        except struct.error:
            raise self.bad(f"{field} [{len(texts)}] lies past the file's end") from None
        except UnicodeDecodeError:
            raise self.bad(f"{field} [{len(texts)}] is not UTF-8") from None
        self.position = position
        return tuple(texts)

    def numbers(self, count: int, dtype: DTypeLike, field: str) -> "NDArray[np.generic]":
        """Read `count` numbers as a read-only array of its own memory."""
        kind = np.dtype(dtype)
        start = self.take(count * kind.itemsize, field=field)
        values: NDArray[np.generic] = np.frombuffer(self._data, dtype=kind, count=count, offset=start).copy()
        values.flags.writeable = False
        return values

    def _text(self, start: int, num_bytes: int, field: str) -> str:
        try:
            return str(self._data[start : start + num_bytes], "utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"{field} is not UTF-8") from None
