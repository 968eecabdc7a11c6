"""Starting and stopping the server thread."""

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from appliance.errors import BadSetting
from appliance.server import http_server
from appliance.server.certificate import Certificate
from appliance.server.http_server import HttpServer
from appliance.server.listener import bind
from server.rig import (
    Rig,
    address_of,
    chat,
    get,
    make_rig,
    open_socket,
    read_until,
    request_bytes,
    serve,
    wait_for,
)

CHAT = "/v1/chat/completions"


def read_all(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection, which is then closed."""
    with connection:
        connection.settimeout(10)
        data = b""
        while part := connection.recv(65536):
            data += part
    return data


def test_an_idle_server_stops_at_once_and_its_port_is_free_again(rig: Rig) -> None:
    server = HttpServer(rig.app(), bind("127.0.0.1", 0), state=rig.state)
    server.start()
    host, port = address_of(server)
    assert get(server, "/health")[0] == 200
    started = time.monotonic()
    server.stop(grace_s=5)
    assert time.monotonic() - started < 1
    bind(host, port).close()


def test_running_streams_finish_within_the_grace_and_newcomers_are_refused(rig: Rig) -> None:
    rig.runner.step_s = 0.02
    rig.reply("a" * 30)
    with serve(rig) as server:
        running = open_socket(server, request_bytes(CHAT, chat(stream=True)))
        idle = open_socket(server)
        wait_for(lambda: rig.state.num_generations == 1)
        stopper = threading.Thread(target=server.stop, args=(5.0,))
        stopper.start()
        wait_for(lambda: _is_refused(server))
        assert b"[DONE]" in read_all(running)
        assert read_all(idle) == b""
        stopper.join(timeout=5)
        assert not stopper.is_alive()


def _is_refused(server: HttpServer) -> bool:
    try:
        open_socket(server).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_outlast_the_grace_end_in_words(stream: bool) -> None:
    with make_rig(step_s=0.02) as rig, serve(rig) as server:
        rig.reply("a", ends=False)
        running = open_socket(server, request_bytes(CHAT, chat(stream=stream)))
        wait_for(lambda: rig.engine.snapshot().num_output_tokens > 2)
        started = time.monotonic()
        server.stop(grace_s=0.7)
        assert time.monotonic() - started < 1.5
        data = read_all(running)
        assert b'"error"' in data
        assert b"stopping" in data
        rig.wait_idle()


def test_a_second_stop_shortens_the_first(rig: Rig) -> None:
    rig.runner.step_s = 0.02
    rig.reply("a", ends=False)
    with serve(rig) as server:
        running = open_socket(server, request_bytes(CHAT, chat(stream=True)))
        wait_for(lambda: rig.state.num_generations == 1)
        stopper = threading.Thread(target=server.stop, args=(60.0,))
        stopper.start()
        time.sleep(0.1)
        started = time.monotonic()
        server.stop(grace_s=0)
        assert time.monotonic() - started < 1.5
        stopper.join(timeout=1)
        assert not stopper.is_alive()
        running.close()


def test_a_watcher_sees_the_draining_and_does_not_delay_it(rig: Rig) -> None:
    with serve(rig) as server:
        watcher = open_socket(server, b"GET /system/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_until(watcher, b'"phase":"ready"')
        started = time.monotonic()
        server.stop(grace_s=10)
        assert time.monotonic() - started < 2
        assert b'"phase":"draining"' in read_all(watcher)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 400_000,  # never ends
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_headers_beyond_the_limit_are_refused_in_words(rig: Rig, head: bytes) -> None:
    with serve(rig) as server:
        connection = open_socket(server)
        with contextlib.suppress(OSError):  # the rest may come after the refusal
            connection.sendall(head)
        assert b"HTTP/1.1 431 " in read_until(connection, b"}}", seconds=10)
        connection.close()
        assert get(server, "/health")[0] == 200


def test_headers_within_the_limit_and_a_long_body_pass(rig: Rig) -> None:
    with serve(rig) as server:
        for _ in range(2):
            body = chat(max_tokens=1, metadata={"a": "b" * 200_000})
            data = request_bytes(CHAT, body, extra="X-Long: " + "a" * 60_000 + "\r\n")
            with open_socket(server, data) as connection:
                assert b" 200 OK" in read_until(connection, b"usage")


def test_connections_beyond_the_limit_are_refused_in_words_and_the_others_served(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_MAX_CONNECTIONS", 5)
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve(rig) as server, contextlib.ExitStack() as closing:
        earlier = [closing.enter_context(open_socket(server)) for _ in range(5)]
        wait_for(lambda: len(server._server.server_state.connections) == 5)
        answer = read_all(open_socket(server, request))
        assert b"HTTP/1.1 503 " in answer
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert "5 connections are open" in error["message"]
        assert error["code"] == "too_many_connections"
        for connection in earlier:
            connection.sendall(request)
            assert b" 200 OK" in read_until(connection, b"}")
        earlier[0].close()
        wait_for(lambda: len(server._server.server_state.connections) == 4)
        assert get(server, "/health")[0] == 200


def test_with_a_certificate_the_server_speaks_https_only(rig: Rig, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    server = HttpServer(rig.app(), bind("127.0.0.1", 0), state=rig.state, certificate=certificate)
    server.start()
    try:
        context = ssl.create_default_context(cafile=str(certificate.file))
        host, port = server.url.removeprefix("https://").rsplit(":", 1)
        connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=context)
        connection.request("POST", CHAT, json.dumps(chat()), {"content-type": "application/json"})
        assert b"hello world" in connection.getresponse().read()
        connection.close()
        plain = http.client.HTTPConnection(host, int(port), timeout=10)
        plain.request("GET", "/health")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()
    finally:
        server.stop(grace_s=0.5)


def test_files_that_are_no_certificate_and_key_are_named(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    junk = tmp_path / "junk.pem"
    junk.write_text("nothing")
    for file, key in ((junk, None), (tmp_path / "none.pem", None), (certificate.file, junk)):
        with pytest.raises(BadSetting, match="--tls-cert"):
            Certificate.from_settings(file, key)
    with pytest.raises(BadSetting, match="--tls-cert"):
        Certificate.from_settings(None, junk)
    assert Certificate.from_settings(None, None) is None


def make_certificate(folder: Path) -> Certificate:
    """One for 127.0.0.1, signed by itself."""
    file, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(file), *names], check=True, capture_output=True
    )
    made = Certificate.from_settings(file, key)
    assert made is not None
    return made
