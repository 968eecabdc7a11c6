"""Which `traceparent` headers are honoured: cases of the W3C standard."""

import pytest

from appliance.observe.traceparent import TraceParent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"cc-{TRACE}-{SPAN}-01-later", True),
    ],
)
def test_a_good_header_names_trace_and_span(text: str, is_sampled: bool) -> None:
    assert TraceParent.parse(text) == TraceParent(trace_id=TRACE, span_id=SPAN, is_sampled=is_sampled)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x" * 10_000,
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-later",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[:-1]}-{SPAN}-01",
    ],
)
def test_a_bad_header_is_ignored(text: str | None) -> None:
    assert TraceParent.parse(text) is None
