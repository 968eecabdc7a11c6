"""A finished request as spans: one for the whole, one for each stage. Knows no wire format."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.observe.request_context import RequestContext
from appliance.observe.request_record import STAGES, WITHIN, RequestRecord

Value = str | int | float | bool
_ERROR_FROM = 500
# Whoever asks chooses the path; no route is that long.
_LONGEST_PATH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Ids in hexadecimal, times in nanoseconds of Unix time. A span of a server has no parent of ours."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    is_server: bool
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    is_error: bool = False


def spans_of(context: RequestContext, trace_id: str, status: int, ended_unix_s: float) -> list[Span]:
    """Return the request's span, then its stages': all but those of no time."""
    record = context.record
    root = Span(
        trace_id=trace_id,
        span_id=secrets.token_hex(8),
        parent_id=context.parent.span_id if context.parent else None,
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
    for name in STAGES:
        seconds = record.stage_s(name)
        if not seconds:
            continue
        start_ns = decode_ns if name in WITHIN else at_ns
        spans.append(_stage(root, name, start_ns, start_ns + _ns(seconds), record))
        if name not in WITHIN:
            at_ns, decode_ns = start_ns + _ns(seconds), start_ns
    return spans


def _stage(root: Span, name: str, start_ns: int, end_ns: int, record: RequestRecord) -> Span:
    attributes: dict[str, Value] = {"appliance.is_sum_of_pieces": True} if name in WITHIN else {}
    if name == "prefill":
        attributes["appliance.prefix_hit_tokens"] = record.prefix_hit_tokens
    if name == "decode" and record.longest_gap_s is not None:
        attributes["appliance.longest_gap_s"] = record.longest_gap_s
    return Span(
        trace_id=root.trace_id,
        span_id=secrets.token_hex(8),
        parent_id=root.span_id,
        name=name,
        is_server=False,
        start_ns=start_ns,
        end_ns=end_ns,
        attributes=attributes,
    )


def _attributes(context: RequestContext, status: int) -> dict[str, Value]:
    found: dict[str, Value | None] = {
        "http.request.method": "POST",
        "url.path": context.path[:_LONGEST_PATH],
        "http.response.status_code": status,
        "appliance.request_id": context.request_id,
    }
    if (record := context.record) is not None:
        found |= {
            "gen_ai.response.id": record.request_id,
            "gen_ai.request.model": record.model,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "appliance.prefix_hit_tokens": record.prefix_hit_tokens,
            "appliance.service_class": record.service_class,
            "appliance.finish_reason": record.reason,
            "appliance.ttft_s": record.ttft_s,
            "appliance.tpot_s": record.tpot_s,
        }
    return {name: value for name, value in found.items() if value is not None}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
