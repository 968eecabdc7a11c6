"""Opens a GGUF model file: typed metadata and zero-copy tensor bytes. Knows no torch and no architecture."""

import mmap
import os
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
from appliance.formats.gguf_header import GGUFTensor as GGUFTensor
from appliance.formats.gguf_header import MetaValue as MetaValue

# Magic, version and the two counts.
_SMALLEST_FILE = 4 + 4 + 8 + 8


class GGUFFile:
    """An open model file. Views from `raw` outlive `close`; the mapping goes with the last of them."""

    def __init__(self, path: Path, data: mmap.mmap, header: GGUFHeader) -> None:
        self.path = path
        self.size_bytes = len(data)
        self.version = header.version
        self.metadata: Mapping[str, MetaValue] = MappingProxyType(dict(header.metadata))
        self.tensors: Mapping[str, GGUFTensor] = MappingProxyType(dict(header.tensors))
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(data, dtype=np.uint8)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a read-only view (rows, row_bytes) of a tensor's bytes. Raises BadModelFile if absent."""
        tensor = self.tensor(name)
        if self._bytes is None:
            raise ValueError(f"'{self.path.name}' is closed")
        flat = self._bytes[tensor.offset : tensor.offset + tensor.num_bytes]
        return flat.reshape(-1, tensor.row_bytes)

    def tensor(self, name: str) -> GGUFTensor:
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

    def metadata_ints(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return an array of integers. Raises BadModelFile like `metadata_int`."""
        if default is not None and key not in self.metadata:
            return default
        value = self._present(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self._mistyped(key, value, "an array of integers")
        numbers: list[int] = value.tolist()
        return tuple(numbers)

    def bad(self, message: str) -> BadModelFile:
        """Return the error to raise when this file contradicts itself."""
        return BadModelFile(f"'{self.path.name}': {message}")

    def close(self) -> None:
        """Let go of the file. Reading tensors afterwards raises ValueError."""
        self._bytes = None

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
    """Open, check and map a GGUF file; no tensor is read.

    Raises BadModelFile naming the field and the bound, or UnsupportedModel for a removed tensor type.
    """
    data = _map_file(path)
    cursor = ByteCursor(data, file_name=path.name)
    return GGUFFile(path, data, read_header(cursor, data[:4]))


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes < _SMALLEST_FILE:
                raise BadModelFile(
                    f"'{path.name}' has {num_bytes} bytes and a GGUF header has at least {_SMALLEST_FILE}; "
                    "download it again"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadModelFile(f"the model file '{path}' cannot be opened: {reason}") from error
