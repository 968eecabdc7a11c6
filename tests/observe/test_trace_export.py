"""Finished requests as spans at a collector: which, how often tried, and nothing lost of what they hold."""

from dataclasses import replace
from itertools import pairwise

import pytest

from appliance.errors import BadSetting
from appliance.observe.request_context import RequestContext
from appliance.observe.request_record import STAGES
from appliance.observe.trace_export import TraceExporter, is_in_share, read_headers, traces_url
from appliance.observe.traceparent import TraceParent
from observe.collector import Collector, attributes, collecting
from observe.test_request_ring import RECORD

PARENT = TraceParent(trace_id="0af7651916cd43dd8448eb211c80319c", span_id="b7ad6b7169203331", is_sampled=True)


def exporter(collector: Collector, share: float = 1.0) -> TraceExporter:
    return TraceExporter(
        traces_url(collector.url),
        share=share,
        headers=read_headers("x-key=secret"),
        resource={"service.name": "appliance-ü"},
        version="1.2",
    )


def context(parent: TraceParent | None = PARENT) -> RequestContext:
    return RequestContext(request_id="id-1", path="/v1/completions", parent=parent, started_unix_s=1e9)


def test_a_request_becomes_a_span_with_a_child_for_each_stage() -> None:
    made = context()
    made.record = replace(RECORD, load_s=0.5, grammar_s=0.25)
    with collecting() as collector:
        sender = exporter(collector)
        sender.start()
        sender.finished(made, 200)
        sender.close()
    (request,) = collector.requests
    assert collector.paths == ["/v1/traces"]
    assert collector.headers[0]["x-key"] == "secret"
    assert collector.headers[0]["content-type"] == "application/x-protobuf"
    (resource,) = request.resource_spans
    assert resource.resource.attributes[0].value.string_value == "appliance-ü"
    assert resource.scope_spans[0].scope.version == "1.2"
    root, *stages = collector.spans
    assert {span.trace_id.hex() for span in collector.spans} == {PARENT.trace_id}
    assert root.parent_span_id.hex() == PARENT.span_id
    assert (root.kind, root.status.code) == (2, 0)
    assert {span.parent_span_id for span in stages} == {root.span_id}
    assert [span.name for span in stages] == list(STAGES)
    for span in stages:
        expected_ns = round(made.record.stage_s(span.name) * 1e9)
        assert span.end_time_unix_nano - span.start_time_unix_nano == expected_ns
    in_row = [span for span in stages if span.name not in ("detokenize", "send")]
    assert root.start_time_unix_nano == in_row[0].start_time_unix_nano == 10**18
    for span, following in pairwise(in_row):
        assert span.end_time_unix_nano == following.start_time_unix_nano
    told = attributes(root)
    assert (told["gen_ai.usage.output_tokens"], told["appliance.ttft_s"]) == (7, 0.12)
    assert told["http.response.status_code"] == 200


def test_a_failed_request_has_a_span_that_says_so() -> None:
    with collecting() as collector:
        sender = exporter(collector)
        sender.start()
        sender.finished(context(None), 503)
        sender.close()
    (span,) = collector.spans
    assert (span.status.code, span.parent_span_id) == (2, b"")
    assert attributes(span)["http.response.status_code"] == 503


def test_the_caller_decides_what_is_traced_and_otherwise_the_share() -> None:
    with collecting() as collector:
        sender = exporter(collector, share=0.0)
        sender.start()
        for parent in (None, replace(PARENT, is_sampled=False), PARENT):
            sender.finished(context(parent), 200)
        sender.close()
    assert [span.trace_id.hex() for span in collector.spans] == [PARENT.trace_id]


def test_a_share_of_the_traces_is_about_that_share_and_the_same_for_everybody() -> None:
    ids = [f"{number * 2**113 // 997 % 2**128:032x}" for number in range(2000)]
    kept = [trace_id for trace_id in ids if is_in_share(trace_id, 0.25)]
    assert 400 < len(kept) < 600
    assert set(kept) <= {trace_id for trace_id in ids if is_in_share(trace_id, 0.5)}
    assert all(is_in_share(trace_id, 1.0) for trace_id in ids)
    assert not any(is_in_share(trace_id, 0.0) for trace_id in ids)


def test_a_collector_that_is_away_gets_the_spans_once_more_and_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collecting() as collector:
        sender = exporter(collector)
        collector.statuses = [503]
        caplog.set_level("INFO")
        assert sender._send([])
        sender._unsent = []
        collector.statuses = [503, 400]
        first = RequestContext(request_id="first", path="/a", started_unix_s=1.0)
        sender.finished(first, 200)
        assert sender._send([sender._worker._queue.get_nowait()])
        assert sender._send([])  # refused for good: given up
        assert sender._send([])
        sender.close()
    assert collector.spans == []
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert ["it answered 503" in record.getMessage() for record in warnings] == [True]
    assert "again" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("http://a:4318/", "http://a:4318/v1/traces"),
        ("https://a/otlp", "https://a/otlp/v1/traces"),
        ("https://a/x/v1/traces", "https://a/x/v1/traces"),
    ],
)
def test_a_collectors_address_needs_no_path(text: str, url: str) -> None:
    assert traces_url(text) == url


@pytest.mark.parametrize("text", ["localhost:4318", "grpc://a:4317", "http://", "", "/v1/traces"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="http://localhost:4318"):
        traces_url(text)


@pytest.mark.parametrize("text", ["a", "a=", "=b", "a=b,c"])
def test_headers_that_are_none_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(BadSetting) as caught:
        read_headers(text)
    assert caught.value.message == "--otlp-headers is not NAME=VALUE,..."
