"""Malformed and hostile HTTP over real sockets, on every route that takes a body: an answer, never a fall."""

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.server.http_server import HttpServer
from appliance.server.listener import bind
from server.rig import MODEL_ID, Rig, address_of, get, make_rig, open_socket, post, request_bytes, serve

OPENAI = ("/v1/chat/completions", "/v1/completions")
OLLAMA = ("/api/chat", "/api/generate", "/api/show", "/api/pull", "/api/copy", "/api/create", "/api/embed")
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
OPERATIONS = ("/tokenize", "/detokenize", "/apply-template")
ROUTES = (*OPENAI, *OLLAMA, *ANTHROPIC, *OPERATIONS)
CHAT = {"model": MODEL_ID, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Rig, HttpServer]]:
    with make_rig() as rig, serve(rig) as server:
        yield rig, server


@pytest.fixture
def server(running: tuple[Rig, HttpServer]) -> Iterator[HttpServer]:
    rig, server = running
    yield server
    assert get(server, "/health")[0] == 200
    assert post(server, OPENAI[0], CHAT)[0] == 200
    rig.wait_idle()


def send(
    server: HttpServer, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*address_of(server), timeout=30)
    connection.request(method, path, body or None, {"content-type": "application/json", **(headers or {})})
    response = connection.getresponse()
    found = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    connection.close()
    return found


def error_of(path: str, data: bytes) -> str:
    """The message, read in the one form that the path's clients know."""
    body = json.loads(data)
    if path.startswith("/api"):
        assert list(body) == ["error"]
        return str(body["error"])
    if path.startswith("/v1/messages"):
        assert (body["type"], set(body["error"])) == ("error", {"type", "message"})
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    return str(body["error"]["message"])


BROKEN = [
    b'{: "model":"x"}',
    b"",
    b"[]",
    b"null",
    b'"x"',
    b'{"model":"x",}',
    b'{"model":"x"}{"model":"y"}',
    b'\xef\xbb\xbf{"model":"x"}',
    '{"model":"x"}'.encode("utf-16"),
    b'{"model":"\xff"}',
    b'{"model":"\\ud800"}',
    b'{"model": NaN}',
]


@pytest.mark.parametrize("path", ROUTES)
def test_broken_json_is_400_in_the_protocols_form(server: HttpServer, path: str) -> None:
    for body in BROKEN:
        status, headers, data = send(server, "POST", path, body)
        assert status in (400, 404), (path, body, data)
        assert headers["content-type"] == "application/json"
        assert error_of(path, data)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("depth", [3000, 100_000])
def test_deep_nesting_is_an_answer_and_no_fall(server: HttpServer, path: str, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    for body in (
        f'{{"model":"{MODEL_ID}","tools":{deep}}}',
        f'{{"model":"{MODEL_ID}","prompt":"a","content":"a","tokens":[1],"max_tokens":1,"foo":{deep}}}',
        f'{{"model":"{MODEL_ID}","messages":[{{"role":"user","content":{deep}}}]}}',
        f'{{"model":"{MODEL_ID}","metadata":{deep},"options":{{"a":{deep}}},"parameters":{{"a":{deep}}}}}',
        deep,
    ):
        status, _, data = send(server, "POST", path, body.encode())
        assert status in (400, 404), (path, body[:60], status, data[:200])
        assert error_of(path, data)


@pytest.mark.parametrize("path", [OPENAI[0], OLLAMA[0], ANTHROPIC[0]])
def test_only_json_is_read(server: HttpServer, path: str) -> None:
    body = json.dumps(CHAT).encode()
    for media_type in ("application/json; charset=utf-8", "APPLICATION/JSON"):
        assert send(server, "POST", path, body, {"content-type": media_type})[0] == 200
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {"content-type": media_type, "referer": "http://elsewhere.example/"}
        status, _, data = send(server, "POST", path, body, headers)
        assert status == 415
        assert "application/json" in error_of(path, data)


def test_ollamas_routes_take_what_curl_calls_a_form_and_no_page_does(server: HttpServer) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps(CHAT).encode()
    assert send(server, "POST", OLLAMA[0], body, form)[0] == 200
    assert send(server, "POST", OPENAI[0], body, form)[0] == 415
    assert send(server, "POST", OLLAMA[0], body, form | {"sec-fetch-site": "cross-site"})[0] in (403, 415)
    assert send(server, "POST", OLLAMA[0], body, form | {"origin": "null"})[0] in (403, 415)


@pytest.mark.parametrize("path", [OPENAI[0], OLLAMA[0], ANTHROPIC[0]])
def test_a_body_past_the_limit_is_413_before_it_is_read(path: str) -> None:
    from appliance.server.appliance_state import ServerLimits

    with make_rig(limits=ServerLimits(max_body_bytes=2**20)) as rig, serve(rig) as server:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        announced = open_socket(server, f"{head}Content-Length: 9999999999\r\n\r\n".encode())
        with announced:
            announced.settimeout(10)
            answer = announced.recv(65536)
        assert b" 413 " in answer
        assert error_of(path, answer.split(b"\r\n\r\n", 1)[1])
        just_fits = json.dumps({**CHAT, "user": "x" * (2**20 - 300)}).encode()
        assert send(server, "POST", path, just_fits)[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/v1/messages"])
@pytest.mark.parametrize("model", ["nope", "x" * 10_000, 5, "../../etc/passwd", "a\x00b"])
def test_an_unknown_model_is_never_another_one(server: HttpServer, path: str, model: Any) -> None:
    for stream in (True, False):
        status, headers, data = send(
            server, "POST", path, json.dumps({**CHAT, "model": model, "stream": stream}).encode()
        )
        assert status == (400 if model == 5 else 404)
        assert headers["content-type"] == "application/json"
        assert len(error_of(path, data)) < 1000


def test_unknown_fields_are_ignored(server: HttpServer) -> None:
    extra = {"foo": 1, "store": True, "service_tier": "auto", "parallel_tool_calls": True, "keep_alive": "5m"}
    for path in (OPENAI[0], OLLAMA[0], ANTHROPIC[0]):
        assert send(server, "POST", path, json.dumps({**CHAT, **extra}).encode())[0] == 200, path


@pytest.mark.parametrize("path", ["/v1/nope", "/api/nope", "/v1/messages/nope", "/nope", "/api", "/v1"])
def test_an_unknown_path_is_404_in_the_protocols_form(server: HttpServer, path: str) -> None:
    for method in ("GET", "POST", "DELETE", "PUT"):
        status, headers, data = send(server, method, path, b"{}")
        assert (status, headers["content-type"]) == (404, "application/json")
        assert error_of(path, data)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/chat/completions"),
        ("GET", "/api/chat"),
        ("GET", "/v1/messages"),
        ("POST", "/v1/models"),
        ("POST", "/api/tags"),
        ("PUT", "/api/delete"),
        ("DELETE", "/props"),
    ],
)
def test_a_wrong_method_is_405_and_says_what_is_allowed(server: HttpServer, method: str, path: str) -> None:
    status, headers, data = send(server, method, path, b"{}")
    assert status == 405
    assert headers["allow"]
    assert error_of(path, data)


@pytest.mark.parametrize(
    "path", ["/", "/health", "/api/tags", "/api/version", "/api/ps", "/v1/models", "/props"]
)
def test_head_is_get_without_the_body(server: HttpServer, path: str) -> None:
    status, headers, data = send(server, "HEAD", path)
    assert (status, data) == (200, b"")
    assert headers["content-type"] == send(server, "GET", path)[1]["content-type"]


def test_a_trailing_or_doubled_slash_is_answered_as_json(server: HttpServer) -> None:
    for path in ("/v1/models/", "//v1/models", "/api/tags/"):
        status, headers, _ = send(server, "GET", path)
        assert status in (200, 404)
        assert headers["content-type"] == "application/json"


def test_options_tells_the_methods(server: HttpServer) -> None:
    status, headers, _ = send(server, "OPTIONS", "/api/chat")
    assert status in (200, 204)
    assert "POST" in headers["allow"]
    assert "DELETE" in send(server, "OPTIONS", "/v1/responses/resp_1")[1]["allow"]


def test_http_1_0_without_a_host_is_answered(server: HttpServer) -> None:
    with open_socket(server, b"GET /api/version HTTP/1.0\r\n\r\n") as connection:
        connection.settimeout(10)
        data = b""
        while part := connection.recv(65536):
            data += part
    assert b" 200 " in data.split(b"\r\n", 1)[0]


def test_a_stream_over_http_1_0_is_plain_and_ends_with_the_connection(server: HttpServer) -> None:
    request = request_bytes(OPENAI[0], {**CHAT, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    with open_socket(server, request) as connection:
        connection.settimeout(10)
        data = b""
        while part := connection.recv(65536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_connection_serves_many_requests_of_every_protocol(server: HttpServer) -> None:
    connection = http.client.HTTPConnection(*address_of(server), timeout=30)
    connection.connect()
    first = connection.sock
    assert isinstance(first, socket.socket)
    for path in (OPENAI[0], OLLAMA[0], ANTHROPIC[0], "/tokenize", OPENAI[0]):
        body = json.dumps({**CHAT, "content": "a", "stream": path == OLLAMA[0]})
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (200, True)
        assert connection.sock is first
    connection.close()


def test_one_application_answers_on_two_ports(running: tuple[Rig, HttpServer]) -> None:
    rig, _ = running
    listeners = [bind("127.0.0.1", 0), bind("127.0.0.1", 0)]
    second = f"{listeners[1].getsockname()[0]}:{listeners[1].getsockname()[1]}"
    server = HttpServer(rig.app(), *listeners, state=rig.state)
    server.start()
    try:
        assert get(server, "/api/version")[0] == 200
        connection = http.client.HTTPConnection(second, timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"Ollama is running"
        connection.close()
    finally:
        server.stop(grace_s=0.5)
        rig.state._status = type(rig.state._status)(phase="ready")
