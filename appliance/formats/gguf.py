"""Opens a GGUF model file: typed metadata and zero-copy tensor bytes. Knows no torch and no architecture.

A model in several files (`-00001-of-00003.gguf`) opens as one, by the name of any of them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BadModelFile
from appliance.formats.byte_cursor import ByteCursor

# Re-exported: callers need one import for a file and what it hands out.
from appliance.formats.ggml_types import GGMLType as GGMLType
from appliance.formats.gguf_header import GGUFHeader, read_header
from appliance.formats.gguf_header import MetaValue as MetaValue
from appliance.formats.mapped_file import map_file
from appliance.formats.number_array import Numbers
from appliance.formats.read_ahead import ReadAhead
from appliance.formats.tensor_file import StoredTensor

# Magic, version and the two counts.
_SMALLEST_FILE = 4 + 4 + 8 + 8


# `name-00001-of-00003.gguf`, as the format's own tool names parts.
_PART_NAME = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf$")


class _Part:
    """One mapped file with its header."""

    def __init__(self, path: Path) -> None:
        data = map_file(path, smallest=_SMALLEST_FILE, kind="GGUF")
        cursor = ByteCursor(data, file_name=path.name)
        self.path = path
        self.header: GGUFHeader = read_header(cursor, data[:4])
        self.bytes: NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8)
        self.read_ahead = ReadAhead(data)


class GGUFFile:
    """An open model. Views from `raw` outlive `close`; a mapping goes with the last of them."""

    def __init__(self, path: Path, parts: "list[_Part]") -> None:
        self.path = path
        self.size_bytes = sum(len(part.bytes) for part in parts)
        self.version = parts[0].header.version
        self.metadata: Mapping[str, MetaValue] = MappingProxyType(dict(parts[0].header.metadata))
        self.tensors: Mapping[str, StoredTensor] = MappingProxyType(
            {name: tensor for part in parts for name, tensor in part.header.tensors.items()}
        )
        self._part_of = {name: part for part in parts for name in part.header.tensors}
        self._is_closed = False

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a read-only view (rows, row_bytes) of a tensor's bytes. Raises BadModelFile if absent."""
        tensor = self.tensor(name)
        if self._is_closed:
            raise ValueError(f"'{self.path.name}' is closed")
        part, end = self._part_of[name], tensor.offset + tensor.num_bytes
        part.read_ahead.use(tensor.offset, end)
        flat = part.bytes[tensor.offset : end]
        return flat.reshape(-1, tensor.row_bytes)

    def tensor(self, name: str) -> StoredTensor:
        """Return a directory entry. Raises BadModelFile if it is absent."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.bad(f"the tensor '{name}' is missing")
        return tensor

    def metadata_int(self, key: str, default: int | None = None) -> int:
        """Return an integer. Raises BadModelFile if it is missing with no default, or of another type."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._mistyped(key, value, "an integer")
        return value

    def metadata_float(self, key: str, default: float | None = None) -> float:
        """Return a float; an integer is widened. Raises BadModelFile like `metadata_int`."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mistyped(key, value, "a number")
        return float(value)

    def metadata_bool(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean. Raises BadModelFile like `metadata_int`."""
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self._mistyped(key, value, "a boolean")
        return value

    def metadata_str(self, key: str, default: str | None = None) -> str:
        """Return a text. Raises BadModelFile like `metadata_int`."""
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self._mistyped(key, value, "a text")
        return value

    def metadata_strings(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return an array of texts. Raises BadModelFile like `metadata_int`."""
        value = self._present(key, default)
        if isinstance(value, np.ndarray) and not value.size:
            return ()  # an empty array carries no useful item type
        if not isinstance(value, tuple):
            raise self._mistyped(key, value, "an array of texts")
        return value

    def metadata_ints(self, key: str) -> Numbers:
        """Return an array of integers. Raises BadModelFile like `metadata_int`."""
        value = self._present(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self._mistyped(key, value, "an array of integers")
        return value

    def metadata_floats(self, key: str) -> Numbers:
        """Return an array of numbers. Raises BadModelFile like `metadata_int`."""
        value = self._present(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
            raise self._mistyped(key, value, "an array of numbers")
        return value

    def bad(self, message: str) -> BadModelFile:
        """Return the error to raise when this file contradicts itself."""
        return BadModelFile(f"'{self.path.name}': {message}")

    def close(self) -> None:
        """Let go of the file. Reading tensors afterwards raises ValueError."""
        self._is_closed = True
        self._part_of = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _present(self, key: str, default: MetaValue | None) -> MetaValue:
        value = self.metadata.get(key, default)
        if value is None:
            raise self.bad(f"the metadata key '{key}' is missing")
        return value

    def _mistyped(self, key: str, value: MetaValue, expected: str) -> BadModelFile:
        if isinstance(value, np.ndarray):
            found = f"an array of {value.dtype}"
        elif isinstance(value, tuple):
            found = "an array of texts"
        else:
            found = f"{value!r:.80}"
        return self.bad(f"the metadata key '{key}' is {found} and must be {expected}")


def read_gguf(path: Path) -> GGUFFile:
    """Open, check and map a model; no tensor is read.

    Raises BadModelFile naming the field and the bound, or UnsupportedModel for a removed tensor type.
    """
    first = _Part(path)
    num_parts = _whole(first, "split.count", 1)
    if num_parts <= 1:
        return GGUFFile(path, [first])
    name = _PART_NAME.match(path.name)
    if name is None or int(name["count"]) != num_parts:
        raise _bad(
            first,
            f"it is part of a model in {num_parts} files and must be named "
            f"'...-00001-of-{num_parts:05}.gguf'; keep the names the files came with",
        )
    return _joined(
        path, [_sibling(path, name["stem"], number, num_parts) for number in range(1, num_parts + 1)]
    )


def _sibling(path: Path, stem: str, number: int, num_parts: int) -> _Part:
    part = _Part(path.with_name(f"{stem}-{number:05}-of-{num_parts:05}.gguf"))
    found, count = _whole(part, "split.no", -1), _whole(part, "split.count", -1)
    if (found, count) != (number - 1, num_parts):
        raise _bad(
            part, f"it says it is part {found + 1} of {count} and is named part {number} of {num_parts}"
        )
    return part


def _joined(path: Path, parts: list[_Part]) -> GGUFFile:
    owners: dict[str, _Part] = {}
    for part in parts:
        for name in part.header.tensors:
            first = owners.setdefault(name, part)
            if first is not part:
                raise _bad(part, f"the tensor '{name}' is in '{first.path.name}' too")
    wanted = _whole(parts[0], "split.tensors.count", len(owners))
    if wanted != len(owners):
        raise _bad(parts[0], f"the model has {wanted} tensors and its {len(parts)} files hold {len(owners)}")
    return GGUFFile(path, parts)


def _whole(part: _Part, key: str, default: int) -> int:
    value = part.header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad(part, f"the metadata key '{key}' is no integer")
    return value


def _bad(part: _Part, message: str) -> BadModelFile:
    return BadModelFile(f"'{part.path.name}': {message}")
