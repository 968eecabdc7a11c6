"""Parses a GGUF header: version, metadata, tensor directory. Knows bytes and bounds; knows no model.

Follows the GGUF specification, versions 2 and 3, little-endian. Every count and length is compared with
what remains of the file before anything is allocated for it.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from appliance.errors import UnsupportedModel
from appliance.formats.byte_cursor import ByteCursor
from appliance.formats.ggml_types import REMOVED_TYPES, GGMLType
from appliance.formats.tensor_file import StoredTensor

MetaValue = int | float | bool | str | tuple[str, ...] | NDArray[np.generic]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_NAME_BYTES = 65_535
MAX_DIMENSIONS = 4
MAX_METADATA = 1 << 16
MAX_TENSORS = 1 << 18
MIN_ALIGNMENT = 8
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32

# The least that one entry takes: key length, one byte of key, type, one byte of value.
_METADATA_BYTES = 8 + 1 + 4 + 1
# Name length, one byte of name, dimension count, one dimension, type, offset.
_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


class ValueType(IntEnum):
    """Type ids of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_LAYOUTS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<B"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFHeader:
    """What precedes the tensor data."""

    version: int
    metadata: Mapping[str, MetaValue]
    tensors: Mapping[str, StoredTensor]


def read_header(cursor: ByteCursor, magic: bytes) -> GGUFHeader:
    """Parse a whole header from the file's start. Raises BadModelFile, or UnsupportedModel by name."""
    version = _read_version(cursor, magic)
    num_tensors = cursor.u64("the tensor count")
    num_metadata = cursor.u64("the metadata count")
    cursor.check_count(
        num_metadata, item_bytes=_METADATA_BYTES, limit=MAX_METADATA, field="the metadata count"
    )
    cursor.check_count(num_tensors, item_bytes=_TENSOR_BYTES, limit=MAX_TENSORS, field="the tensor count")
    metadata, alignment = _read_metadata(cursor, num_metadata)
    tensors = _read_tensors(cursor, num_tensors, alignment)
    return GGUFHeader(version=version, metadata=metadata, tensors=tensors)


def _read_version(cursor: ByteCursor, magic: bytes) -> int:
    cursor.take(len(MAGIC), field="the magic number")
    if magic != MAGIC:
        raise cursor.bad(f"the file begins with {magic!r}, not {MAGIC!r}: it is not a GGUF model")
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version >> 16:
        raise cursor.bad("the file is big-endian GGUF; convert it to little-endian")
    if version not in VERSIONS:
        raise cursor.bad(f"the GGUF version is {version} and versions 2 and 3 can be read; convert it again")
    return version


def _read_metadata(cursor: ByteCursor, count: int) -> tuple[dict[str, MetaValue], int]:
    metadata: dict[str, MetaValue] = {}
    alignment = DEFAULT_ALIGNMENT
    for index in range(count):
        key = _read_name(cursor, f"metadata key {index}")
        if key in metadata:
            raise cursor.bad(f"the metadata key '{key}' occurs twice")
        value_type = _read_value_type(cursor, f"'{key}'")
        metadata[key] = _read_value(cursor, value_type, key)
        if key == "general.alignment":
            alignment = _checked_alignment(cursor, value_type, metadata[key])
    return metadata, alignment


def _read_name(cursor: ByteCursor, field: str) -> str:
    name = cursor.string(field, limit=MAX_NAME_BYTES)
    if not name:
        raise cursor.bad(f"{field} is empty")
    if "\0" in name:
        raise cursor.bad(f"{field} {name!r} holds a NUL character")
    return name


def _read_value_type(cursor: ByteCursor, field: str) -> ValueType:
    type_id = cursor.u32(f"the type of {field}")
    if type_id > max(ValueType):
        raise cursor.bad(f"the type of {field} is {type_id} and the highest is {max(ValueType)}")
    return ValueType(type_id)


def _read_value(cursor: ByteCursor, value_type: ValueType, key: str) -> MetaValue:
    field = f"the value of '{key}'"
    if value_type is ValueType.STRING:
        return cursor.string(field)
    if value_type is ValueType.ARRAY:
        return _read_array(cursor, key)
    value = cursor.scalar(_LAYOUTS[value_type], field)
    if value_type is not ValueType.BOOL:
        return value
    if value not in (0, 1):
        raise cursor.bad(f"{field} is {value} and a boolean is 0 or 1")
    return bool(value)


def _read_array(cursor: ByteCursor, key: str) -> tuple[str, ...] | NDArray[np.generic]:
    field = f"the array '{key}'"
    item_type = _read_value_type(cursor, f"the items of '{key}'")
    if item_type is ValueType.ARRAY:
        raise cursor.bad(f"{field} holds arrays and one level is the limit")
    count = cursor.u64(f"the length of {field}")
    is_text = item_type is ValueType.STRING
    item_bytes = 8 if is_text else _LAYOUTS[item_type].size
    cursor.check_count(count, item_bytes=item_bytes, field=f"the length of {field}")
    if is_text:
        return cursor.strings(count, field)
    if item_type is not ValueType.BOOL:
        return cursor.numbers(count, _LAYOUTS[item_type].format, field)
    flags = cursor.numbers(count, np.uint8, field)
    if count and flags.max() > 1:
        raise cursor.bad(f"{field} holds a boolean that is neither 0 nor 1")
    return flags.view(np.bool_)


def _checked_alignment(cursor: ByteCursor, value_type: ValueType, value: MetaValue) -> int:
    if value_type is not ValueType.UINT32 or not isinstance(value, int):
        raise cursor.bad(f"'general.alignment' has the type {value_type.name} and must be UINT32")
    if not MIN_ALIGNMENT <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise cursor.bad(
            f"'general.alignment' is {value} and must be a power of two "
            f"from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A directory entry as stored: its offset counts from the data section's start."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    offset: int


def _read_tensors(cursor: ByteCursor, count: int, alignment: int) -> dict[str, StoredTensor]:
    records: dict[str, _Record] = {}
    for index in range(count):
        record = _read_record(cursor, index)
        if record.name in records:
            raise cursor.bad(f"the tensor name '{record.name}' occurs twice")
        records[record.name] = record
    data_start = -(-cursor.position // alignment) * alignment
    file_bytes = cursor.position + cursor.num_remaining
    tensors = {
        name: _place(cursor, record, data_start, alignment, file_bytes) for name, record in records.items()
    }
    _check_no_overlap(cursor, tensors)
    return tensors


def _read_record(cursor: ByteCursor, index: int) -> _Record:
    name = _read_name(cursor, f"the name of tensor {index}")
    num_dimensions = cursor.u32(f"the dimension count of tensor '{name}'")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.bad(
            f"tensor '{name}' has {num_dimensions} dimensions and must have 1 to {MAX_DIMENSIONS}"
        )
    dimensions = [cursor.u64(f"dimension {axis} of tensor '{name}'") for axis in range(num_dimensions)]
    if 0 in dimensions:
        raise cursor.bad(f"tensor '{name}' has a dimension of 0")
    type_id = cursor.u32(f"the type of tensor '{name}'")
    offset = cursor.u64(f"the offset of tensor '{name}'")
    # The file stores the innermost dimension first.
    shape = tuple(reversed(dimensions))
    return _Record(name=name, type=_tensor_type(cursor, name, type_id), shape=shape, offset=offset)


def _tensor_type(cursor: ByteCursor, name: str, type_id: int) -> GGMLType:
    if type_id in REMOVED_TYPES:
        raise UnsupportedModel(
            f"tensor '{name}' has the type {REMOVED_TYPES[type_id]}, which the format no longer has; "
            "get a file in another quantization"
        )
    try:
        return GGMLType(type_id)
    except ValueError:
        raise cursor.bad(f"tensor '{name}' has the unknown type {type_id}") from None


def _place(
    cursor: ByteCursor, record: _Record, data_start: int, alignment: int, file_bytes: int
) -> StoredTensor:
    """Return the entry with its size and absolute offset, both checked against the file."""
    block_size, row_length = record.type.block_size, record.shape[-1]
    if row_length % block_size:
        raise cursor.bad(
            f"tensor '{record.name}' has rows of {row_length} and {record.type.name} "
            f"needs a multiple of {block_size}"
        )
    if record.offset % alignment:
        raise cursor.bad(
            f"tensor '{record.name}' is at offset {record.offset}, not a multiple of {alignment}"
        )
    num_bytes = math.prod(record.shape) // block_size * record.type.block_bytes
    offset = data_start + record.offset
    if offset + num_bytes > file_bytes:
        raise cursor.bad(
            f"tensor '{record.name}' ends at byte {offset + num_bytes} and the file has {file_bytes}: "
            "it is truncated; download it again"
        )
    return StoredTensor(
        name=record.name, type=record.type, shape=record.shape, offset=offset, num_bytes=num_bytes
    )


def _check_no_overlap(cursor: ByteCursor, tensors: Mapping[str, StoredTensor]) -> None:
    previous: StoredTensor | None = None
    for tensor in sorted(tensors.values(), key=lambda entry: entry.offset):
        if previous is not None and tensor.offset < previous.offset + previous.num_bytes:
            raise cursor.bad(f"tensors '{previous.name}' and '{tensor.name}' overlap")
        previous = tensor
