"""Opens one safetensors file: a JSON directory and zero-copy tensor bytes. Knows no model.

The format: 8 bytes of header length, the header, then the tensors. Here as in its specification the buffer is
wholly indexed: no overlap, no hole, nothing after the last tensor.
"""

import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.ggml_types import GGMLType
from appliance.formats.json_file import Json, parse_object
from appliance.formats.mapped_file import map_file
from appliance.formats.read_ahead import ReadAhead
from appliance.formats.tensor_file import StoredTensor

# The format's own readers allow 100 MB. A directory of 130,000 tensors takes less than 16 MiB, and parsing
# that much, whatever it holds, stays under 200 MB of memory.
MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 1 << 17
MAX_DIMENSIONS = 8
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
# Most of each character in a directory of MAX_TENSORS entries: what holds more is not parsed at all.
_MOST_OF = {b"{": MAX_TENSORS + 2, b"[": 2 * MAX_TENSORS, b",": 8 * MAX_TENSORS}

TYPES = {
    "F64": GGMLType.F64,
    "F32": GGMLType.F32,
    "F16": GGMLType.F16,
    "BF16": GGMLType.BF16,
    "I64": GGMLType.I64,
    "I32": GGMLType.I32,
    "I16": GGMLType.I16,
    "I8": GGMLType.I8,
    # Bytes are bytes: packed weights are read by their own decoders.
    "U8": GGMLType.I8,
    "BOOL": GGMLType.I8,
}


class SafetensorsFile:
    """An open file. Views from `raw` outlive it; the mapping goes with the last of them."""

    def __init__(self, path: Path, data: mmap.mmap, tensors: Mapping[str, StoredTensor]) -> None:
        self.path = path
        self.size_bytes = len(data)
        self.tensors: Mapping[str, StoredTensor] = MappingProxyType(dict(tensors))
        self._bytes: NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8)
        self._read_ahead = ReadAhead(data)

    def tensor(self, name: str) -> StoredTensor:
        """Return a directory entry. Raises BadModelFile if it is absent."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.bad(f"the tensor '{name}' is missing")
        return tensor

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a read-only view (rows, row_bytes) of a tensor's bytes. Raises BadModelFile if absent."""
        tensor = self.tensor(name)
        end = tensor.offset + tensor.num_bytes
        self._read_ahead.use(tensor.offset, end)
        flat = self._bytes[tensor.offset : end]
        return flat.reshape(-1, tensor.row_bytes) if tensor.num_bytes else flat.reshape(0, tensor.row_bytes)

    def bad(self, message: str) -> BadModelFile:
        """Return the error to raise when this file contradicts itself."""
        return BadModelFile(f"'{self.path.name}': {message}")


def read_safetensors(path: Path) -> SafetensorsFile:
    """Open, check and map a file; no tensor is read.

    Raises BadModelFile naming the field and the bound, or UnsupportedModel for an element type.
    """
    data = map_file(path, smallest=_LENGTH_BYTES + len("{}"), kind="safetensors")
    file_name = f"'{path.name}'"
    num_header = int.from_bytes(data[:_LENGTH_BYTES], "little")
    room = len(data) - _LENGTH_BYTES
    if num_header > room:
        raise BadModelFile(
            f"{file_name}: the header has {num_header} bytes and {room} remain: the length exceeds the file; "
            "download it again"
        )
    if num_header > MAX_HEADER_BYTES:
        raise BadModelFile(
            f"{file_name}: the header has {num_header} bytes and the limit is {MAX_HEADER_BYTES}"
        )
    header = data[_LENGTH_BYTES : _LENGTH_BYTES + num_header]
    directory = _parse_header(header, file_name)
    start = _LENGTH_BYTES + num_header
    tensors = {
        name: _entry(name, fields, start, file_name)
        for name, fields in directory.items()
        if name != _METADATA
    }
    _check_layout(tensors, start, len(data), file_name)
    return SafetensorsFile(path, data, tensors)


def _parse_header(header: bytes, file_name: str) -> Json:
    if not header.startswith(b"{"):
        raise BadModelFile(f"{file_name}: the header begins with {header[:1]!r} and must be a JSON object")
    for character, most in _MOST_OF.items():
        if header.count(character) > most:
            raise BadModelFile(
                f"{file_name}: the header holds more than {most} {character.decode()!r}, as many as "
                f"{MAX_TENSORS} tensors need, which is the limit"
            )
    return parse_object(header, what=f"{file_name}: the header")


def _entry(name: str, fields: object, data_start: int, file_name: str) -> StoredTensor:
    what = f"{file_name}: tensor '{name:.200}'"
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise BadModelFile(f"{what} is not described by dtype, shape and data_offsets")
    shape = _naturals(fields["shape"], f"{what}: the shape")
    offsets = _naturals(fields["data_offsets"], f"{what}: data_offsets")
    if len(shape) > MAX_DIMENSIONS:
        raise BadModelFile(f"{what} has {len(shape)} dimensions and the limit is {MAX_DIMENSIONS}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BadModelFile(f"{what}: data_offsets are {list(offsets)!r:.80} and must be a begin and an end")
    dtype = fields["dtype"]
    if not isinstance(dtype, str) or dtype not in TYPES:
        raise UnsupportedModel(
            f"{what} has the type {dtype!r:.40}, which this version cannot read; get the model as BF16, F16 "
            "or F32"
        )
    element_type, num_bytes = TYPES[dtype], offsets[1] - offsets[0]
    wanted = math.prod(shape) * element_type.block_bytes
    if wanted != num_bytes:
        raise BadModelFile(f"{what} has {num_bytes} bytes and its shape {shape} of {dtype} needs {wanted}")
    return StoredTensor(
        name=name, type=element_type, shape=shape, offset=data_start + offsets[0], num_bytes=num_bytes
    )


def _naturals(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 1 << 63 for item in value):
        raise BadModelFile(f"{what} is {value!r:.80} and must be a list of whole numbers from 0 on")
    return tuple(value)


def _check_layout(tensors: Mapping[str, StoredTensor], start: int, file_bytes: int, file_name: str) -> None:
    """Raise BadModelFile unless the tensors fill what follows the header, each byte once."""
    position, previous = start, ""
    for tensor in sorted(tensors.values(), key=lambda entry: (entry.offset, entry.num_bytes)):
        if tensor.offset < position:
            raise BadModelFile(f"{file_name}: tensors '{previous}' and '{tensor.name}' overlap")
        if tensor.offset > position:
            raise BadModelFile(
                f"{file_name}: {tensor.offset - position} bytes before tensor '{tensor.name}' belong to none"
            )
        position, previous = tensor.offset + tensor.num_bytes, tensor.name
    if position > file_bytes:
        raise BadModelFile(
            f"{file_name}: tensor '{previous}' ends at byte {position} and the file has {file_bytes}: it is "
            "truncated; download it again"
        )
    if position < file_bytes:
        raise BadModelFile(f"{file_name}: {file_bytes - position} bytes after the last tensor belong to none")
