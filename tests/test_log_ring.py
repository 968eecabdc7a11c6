import logging

from appliance.log_ring import LogRing
from appliance.observe.request_context import RequestContext, serving


def ring_with(*messages: str) -> LogRing:
    ring = LogRing()
    for message in messages:
        ring.handle(logging.LogRecord("appliance.x", logging.WARNING, "f", 1, message, None, None))
    return ring


def test_lines_are_numbered_and_given_since_a_number() -> None:
    ring = ring_with("one", "two", "three")
    assert [(line.number, line.message, line.level) for line in ring.after(1)] == [
        (2, "two", "warning"),
        (3, "three", "warning"),
    ]
    assert ring.after(3) == ring.after(99) == []


def test_old_lines_are_forgotten_and_long_ones_cut() -> None:
    ring = ring_with(*("x" * 5000 for _ in range(1500)))
    kept = ring.after(0)
    assert (len(kept), kept[0].number, len(kept[0].message)) == (1000, 501, 2000)
    assert [line.number for line in ring.after(1498)] == [1499, 1500]


def test_a_line_bears_the_id_of_its_request() -> None:
    ring = ring_with("before")
    with serving(RequestContext(request_id="chatcmpl-1")):
        ring.handle(logging.LogRecord("appliance.x", logging.INFO, "f", 1, "meanwhile", None, None))
        given = logging.makeLogRecord({"msg": "of another", "request_id": "chatcmpl-2"})
        ring.handle(given)
    assert [line.request_id for line in ring.after(0)] == ["", "chatcmpl-1", "chatcmpl-2"]
