"""Writes spans as OTLP's protobuf: the few messages and fields of it that a span needs. Knows no sender.

Field numbers are those of opentelemetry/proto/trace/v1/trace.proto. The official library would bring a dozen
packages for these hundred lines; its decoder checks them in the tests.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

from appliance.observe.spans import Span, Value

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_INTERNAL, _SERVER = 1, 2
_STATUS_ERROR = 2
_SMALL = tuple(bytes([value]) for value in range(128))  # numbers of one byte; a tag is one up to field 15


def encode_request(spans: Sequence[Span], resource: Mapping[str, Value], scope: str, version: str) -> bytes:
    """Return an ExportTraceServiceRequest."""
    scope_spans = _message(1, _text(1, scope) + _text(2, version))
    scope_spans += b"".join(_message(2, _span(span)) for span in spans)
    return _message(1, _message(1, _attributes(1, resource)) + _message(2, scope_spans))


def _span(span: Span) -> bytes:
    parts = [
        _message(1, bytes.fromhex(span.trace_id)),
        _message(2, bytes.fromhex(span.span_id)),
        _message(4, bytes.fromhex(span.parent_id)) if span.parent_id else b"",
        _text(5, span.name),
        _number(6, _SERVER if span.is_server else _INTERNAL),
        _fixed(7, struct.pack("<Q", span.start_ns)),
        _fixed(8, struct.pack("<Q", span.end_ns)),
        _attributes(9, span.attributes),
        _message(15, _number(3, _STATUS_ERROR)) if span.is_error else b"",
    ]
    return b"".join(parts)


def _attributes(field: int, values: Mapping[str, Value]) -> bytes:
    return b"".join([_message(field, _name(key) + _message(2, _value(v))) for key, v in values.items()])


@lru_cache(maxsize=256)
def _name(key: str) -> bytes:
    """An attribute's name: there are two dozen, which every span has again."""
    return _text(1, key)


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return _number(2, int(value))
        case int():
            return _number(3, value)
        case float():
            return _fixed(4, struct.pack("<d", value))
        case _:
            return _text(1, value)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _message(field: int, content: bytes) -> bytes:
    return _SMALL[field << 3 | _BYTES] + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _SMALL[field << 3 | _VARINT] + _varint(value % 2**64)  # a negative one in two's complement


def _fixed(field: int, eight_bytes: bytes) -> bytes:
    return _SMALL[field << 3 | _FIXED64] + eight_bytes


def _varint(value: int) -> bytes:
    if value < len(_SMALL):
        return _SMALL[value]
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
