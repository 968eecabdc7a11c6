"""A request's id and trace, on real sockets: in its answer, in every log line, at a collector."""

import json
import logging
from pathlib import Path

from litestar.testing import TestClient

from appliance.logs import JsonFormatter
from appliance.observe.trace_export import TraceExporter, traces_url
from appliance.server.access import AccessRules
from appliance.server.app import create_app
from appliance.server.http_server import HttpServer
from appliance.server.listener import bind
from observe.collector import attributes, collecting
from server.rig import Rig, chat, open_socket, read_until, request_bytes

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


class Lines(logging.Handler):
    """Keeps the JSON of each line, formatted where it was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(JsonFormatter().format(record)))


def test_a_client_finds_its_trace_at_the_collector_with_every_stage(rig: Rig) -> None:
    rig.runner.step_s = 0.005
    with collecting() as collector:
        traces = TraceExporter(
            traces_url(collector.url), share=0.0, headers={}, resource={"service.name": "a"}, version="1"
        )
        traces.start()
        app = create_app(rig.state, access=AccessRules(api_key=None), finished=traces.finished)
        server = HttpServer(app, bind("127.0.0.1", 0), state=rig.state)
        server.start()
        traced, chats = f"traceparent: {HEADERS['traceparent']}\r\n", "/v1/chat/completions"
        for extra, path, end in (
            (traced, chats, b"[DONE]"),
            ("", chats, b"[DONE]"),
            (traced, "/x", b"at /x"),
        ):
            connection = open_socket(
                server,
                request_bytes(
                    path, chat(stream=True, messages=[{"role": "user", "content": "zebrafish"}]), extra=extra
                ),
            )
            read_until(connection, end)
            connection.close()
        rig.wait_idle()
        server.stop(grace_s=1.0)
        traces.close()
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    root, refused = (next(s for s in collector.spans if s.name == f"POST {p}") for p in (chats, "/x"))
    stages = [span for span in collector.spans if span.parent_span_id == root.span_id]
    assert len(stages) == len(collector.spans) - 2
    assert {root.parent_span_id.hex(), refused.parent_span_id.hex()} == {SPAN}
    names = [span.name for span in stages]
    assert names == [
        *("receive", "parse", "template", "tokenize", "queue", "prefill", "decode", "detokenize", "send")
    ]
    told = attributes(root)
    assert str(told["appliance.request_id"]).startswith("chatcmpl-")
    assert told["gen_ai.response.id"] == told["appliance.request_id"]
    assert told["gen_ai.usage.output_tokens"] == len(rig.runner.replies)
    assert attributes(refused)["http.response.status_code"] == 404
    spent_ns = sum(
        span.end_time_unix_nano - span.start_time_unix_nano
        for span in stages
        if span.name not in ("detokenize", "send")
    )
    # Each step sleeps for 5 ms; nothing is counted twice.
    assert 15e6 < spent_ns <= 1.01 * (root.end_time_unix_nano - root.start_time_unix_nano)
    assert "zebrafish" not in str(collector.requests)  # no word of the request


def test_every_line_of_a_request_bears_its_id_and_trace(rig: Rig, client: TestClient) -> None:
    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        answer = client.post("/v1/chat/completions", json=chat(wholly_unknown=1), headers=HEADERS)
        rig.wait_idle()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    ours = [line for line in handler.lines if str(line["logger"]).startswith("appliance")]
    assert {line["logger"] for line in ours} == {"appliance.server.request_body", "appliance.requests"}
    assert {line["request_id"] for line in ours} == {answer.json()["id"]}
    assert {line["trace_id"] for line in ours} == {TRACE}
    assert answer.headers["x-request-id"] == answer.json()["id"]


def test_every_answer_has_an_id_of_its_own(client: TestClient, tmp_path: Path) -> None:
    answers = [client.get(path) for path in ("/health", "/health", "/nothing", "/metrics")]
    answers.append(client.post("/v1/chat/completions", json=chat(temperature=99)))
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


def test_stages_before_the_queue_are_told_apart(rig: Rig, client: TestClient) -> None:
    client.post("/v1/chat/completions", json=chat())
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    rig.reply('{"a": 1}')
    client.post("/v1/chat/completions", json=chat(response_format=schema))
    client.post("/v1/completions", json={"model": "tiny", "prompt": "the world"})
    rig.wait_idle()
    completion, bound, plain = client.get("/system/v1/requests").json()["requests"]
    assert min(plain[f"{stage}_s"] for stage in ("receive", "parse", "template", "tokenize")) > 0
    assert plain["grammar_s"] == plain["load_s"] == 0
    assert bound["grammar_s"] > 0
    assert completion["template_s"] == 0 < completion["tokenize_s"]
