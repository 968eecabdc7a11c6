"""Writes spans as OTLP's protobuf: the few messages and fields of it that a span needs. Knows no sender.

Field numbers are those of opentelemetry/proto/trace/v1/trace.proto. The official library would bring a dozen
packages for these hundred lines; its decoder checks them in the tests.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache

from appliance.observe.spans import Span, Value

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_INTERNAL, _SERVER = 1, 2
_STATUS_ERROR = 2
_SMALL = tuple(bytes([value]) for value in range(128))  # numbers of one byte; a tag is one up to field 15
# A span's fields of one length, tag and length written out: most of it is the same bytes each time.
_TRACE_ID, _SPAN_ID, _PARENT_ID = (bytes([field << 3 | 2, size]) for field, size in ((1, 16), (2, 8), (4, 8)))
_START, _END = (field << 3 | _FIXED64 for field in (7, 8))
_TIMES = struct.Struct("<BQBQ")
_VALUE, _TEXT_IN_VALUE = (bytes([field << 3 | _BYTES]) for field in (2, 1))
_REAL, _REAL_IN_VALUE = struct.Struct("<Bd"), 4 << 3 | _FIXED64


def encode_request(
    spans: Iterable[Span], resource: Iterable[tuple[str, Value]], scope: str, version: str
) -> bytes:
    """Return an ExportTraceServiceRequest."""
    scope_spans = _message(1, _text(1, scope) + _text(2, version))
    scope_spans += b"".join([_message(2, _span(span)) for span in spans])
    return _message(1, _message(1, _attributes(1, resource)) + _message(2, scope_spans))


def _span(span: Span) -> bytes:
    trace_id, span_id, parent_id, name, is_server, start_ns, end_ns, attributes, is_error = span
    return b"".join(
        (
            _TRACE_ID,
            trace_id,
            _SPAN_ID,
            span_id,
            _PARENT_ID + parent_id if parent_id else b"",
            _named(name, is_server),
            _TIMES.pack(_START, start_ns, _END, end_ns),
            _attributes(9, attributes) if attributes else b"",
            _message(15, _number(3, _STATUS_ERROR)) if is_error else b"",
        )
    )


def _attributes(field: int, values: Iterable[tuple[str, Value]]) -> bytes:
    parts: list[bytes] = []
    for key, value in values:
        name, written = _name(key), _value(value)
        parts += (_SMALL[field << 3 | _BYTES], _varint(len(name) + len(written)), name, written)
    return b"".join(parts)


@lru_cache(maxsize=256)
def _named(name: str, is_server: bool) -> bytes:
    """A span's name and kind: there is one for each stage and each of our paths."""
    return _text(5, name) + _number(6, _SERVER if is_server else _INTERNAL)


@lru_cache(maxsize=256)
def _name(key: str) -> bytes:
    """An attribute's name: there are two dozen, which every span has again."""
    return _text(1, key)


def _value(value: Value) -> bytes:
    """An AnyValue as field 2 of an attribute. The commonest first."""
    kind = type(value)
    if kind is str:
        text = value.encode()  # type: ignore[union-attr]
        content = _TEXT_IN_VALUE + _varint(len(text)) + text
    elif kind is float:
        content = _REAL.pack(_REAL_IN_VALUE, value)
    else:
        content = _number(2 if kind is bool else 3, int(value))
    return _VALUE + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _message(field: int, content: bytes) -> bytes:
    return _SMALL[field << 3 | _BYTES] + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _SMALL[field << 3 | _VARINT] + _varint(value % 2**64)  # a negative one in two's complement


def _varint(value: int) -> bytes:
    if value < len(_SMALL):
        return _SMALL[value]
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
