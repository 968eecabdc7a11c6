"""A finished request as spans: one for the whole, one for each stage. Knows no wire format."""

import os
from typing import NamedTuple

from appliance.observe.request_context import RequestContext
from appliance.observe.request_record import STAGES, WITHIN, RequestRecord

Value = str | int | float | bool
_ERROR_FROM = 500
# Whoever asks chooses the path; no route is that long.
_LONGEST_PATH = 256


_ID_BYTES = 8


class Span(NamedTuple):
    """Times in nanoseconds of Unix time. A span of a server has no parent of ours.

    A tuple, as there are a dozen of each request: a frozen dataclass takes three times as long to make.
    """

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    is_server: bool
    start_ns: int
    end_ns: int
    attributes: tuple[tuple[str, Value], ...] = ()
    is_error: bool = False


class Ended(NamedTuple):
    """A request that is over, all that its spans are made of; `trace_id` in hexadecimal."""

    context: RequestContext
    trace_id: str
    status: int
    ended_unix_s: float


def spans_of(ended: Ended) -> list[Span]:
    """Return the request's span, then its stages': all but those of no time."""
    context, trace_id, status, ended_unix_s = ended
    record = context.record
    root = Span(
        trace_id=bytes.fromhex(trace_id),
        span_id=os.urandom(_ID_BYTES),
        parent_id=bytes.fromhex(context.parent.span_id) if context.parent else b"",
        name=f"POST {context.path[:_LONGEST_PATH]}",
        is_server=True,
        start_ns=_ns(context.started_unix_s),
        end_ns=_ns(max(ended_unix_s, context.started_unix_s)),
        attributes=_attributes(context, status),
        is_error=status >= _ERROR_FROM or (record is not None and "error" in record.reason),
    )
    return [root, *(_stages(root, record) if record else ())]


def _stages(root: Span, record: RequestRecord) -> list[Span]:
    """Stages follow one another; what is spent within decoding begins with it and is a sum of pieces."""
    spans, at_ns, decode_ns = [], root.start_ns, root.start_ns
    ids = os.urandom(_ID_BYTES * len(STAGES))
    trace_id, parent_id = root.trace_id, root.span_id
    for number, name in enumerate(STAGES):
        if not (seconds := record.stage_s(name)):
            continue
        start_ns = decode_ns if name in WITHIN else at_ns
        end_ns = start_ns + _ns(seconds)
        span_id = ids[_ID_BYTES * number : _ID_BYTES * (number + 1)]
        spans.append(Span(trace_id, span_id, parent_id, name, False, start_ns, end_ns, _told(name, record)))
        if name not in WITHIN:
            at_ns, decode_ns = end_ns, start_ns
    return spans


def _told(stage: str, record: RequestRecord) -> tuple[tuple[str, Value], ...]:
    if stage in WITHIN:
        return (("appliance.is_sum_of_pieces", True),)
    if stage == "prefill":
        return (("appliance.prefix_hit_tokens", record.prefix_hit_tokens),)
    if stage == "decode" and record.longest_gap_s is not None:
        return (("appliance.longest_gap_s", record.longest_gap_s),)
    return ()


def _attributes(context: RequestContext, status: int) -> tuple[tuple[str, Value], ...]:
    found: list[tuple[str, Value | None]] = [
        ("http.request.method", "POST"),
        ("url.path", context.path[:_LONGEST_PATH]),
        ("http.response.status_code", status),
        ("appliance.request_id", context.request_id),
    ]
    if (record := context.record) is not None:
        found += [
            ("gen_ai.response.id", record.request_id),
            ("gen_ai.request.model", record.model),
            ("gen_ai.usage.input_tokens", record.prompt_tokens),
            ("gen_ai.usage.output_tokens", record.output_tokens),
            ("appliance.prefix_hit_tokens", record.prefix_hit_tokens),
            ("appliance.service_class", record.service_class),
            ("appliance.finish_reason", record.reason),
            ("appliance.ttft_s", record.ttft_s),
            ("appliance.tpot_s", record.tpot_s),
        ]
    return tuple((name, value) for name, value in found if value is not None)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
