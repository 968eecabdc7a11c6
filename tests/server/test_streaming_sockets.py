"""Streams on real sockets: what leaves at once, what keeps a silent one alive, what a slow reader costs."""

import contextlib
import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from appliance.engine.sequence import SamplingParams
from appliance.server.appliance_state import ServerLimits
from appliance.server.http_server import HttpServer
from server.rig import (
    CONTEXT,
    TOKENIZER,
    Rig,
    address_of,
    byte_ids,
    chat,
    completion,
    get,
    make_rig,
    open_socket,
    post,
    read_until,
    request_bytes,
    serve,
    sse_events,
    wait_for,
)

CHAT = "/v1/chat/completions"


def test_first_token_leaves_before_the_second_is_made(rig: Rig) -> None:
    gate = threading.Event()
    inner = rig.runner._choose

    def choose(digest: int, index: int, params: object) -> int:
        if index == 1:
            assert gate.wait(5)
        return inner(digest, index, params)

    rig.runner._choose = choose
    with serve(rig) as server:
        connection = open_socket(server, request_bytes(CHAT, chat(stream=True)))
        data = read_until(connection, b'"content":"hello"')
        assert b'"role":"assistant"' in data
        gate.set()
        read_until(connection, b"[DONE]")
        connection.close()


def test_a_waiting_stream_is_kept_alive_by_comments() -> None:
    limits = ServerLimits(ping_interval_s=0.05)
    with make_rig(limits=limits) as rig, serve(rig) as server:
        gate = threading.Event()
        rig.runner._sleep = lambda _: gate.wait(5)
        rig.runner.step_s = 1
        connection = open_socket(server, request_bytes(CHAT, chat(stream=True)))
        data = read_until(connection, b": ping\n\n")
        assert data.startswith(b"HTTP/1.1 200")
        read_until(connection, b": ping\n\n")
        gate.set()
        rest = read_until(connection, b"[DONE]")
        assert b'"finish_reason":"stop"' in rest
        connection.close()


def test_a_busy_stream_has_no_comments_and_parses(rig: Rig) -> None:
    with serve(rig) as server:
        status, data = post(server, CHAT, chat(stream=True))
        assert status == 200
        assert b"ping" not in data
        assert sse_events(data)


def test_connections_are_kept_alive_between_requests(rig: Rig) -> None:
    with serve(rig) as server:
        connection = http.client.HTTPConnection(*address_of(server), timeout=5)
        sockets = set()
        for stream in (False, True, False):
            connection.request(
                "POST", CHAT, json.dumps(chat(stream=stream)), {"content-type": "application/json"}
            )
            response = connection.getresponse()
            assert response.getheader("server") == "inference-appliance"
            assert b"hello" in response.read()
            sockets.add(connection.sock)
        assert len(sockets) == 1
        connection.close()


def test_thirty_two_streams_at_once_each_equal_their_solo_run() -> None:
    with make_rig(max_sequences=20, num_blocks=100, step_s=0.001) as rig, serve(rig) as server:
        rig.runner.replies = None
        prompts = [byte_ids(f"prompt {number} ".encode() * (1 + number % 5)) for number in range(32)]
        lengths = [1 + 7 * number % 60 for number in range(32)]

        def ask(number: int) -> str:
            body = completion(
                prompt=prompts[number], max_tokens=lengths[number], stream=True, ignore_eos=True
            )
            events = sse_events(post(server, "/v1/completions", body)[1])
            return "".join(event["choices"][0]["text"] for event in events)

        with ThreadPoolExecutor(32) as clients:
            texts = list(clients.map(ask, range(32)))
        for prompt, length, text in zip(prompts, lengths, texts, strict=True):
            alone = rig.runner.solo(prompt, SamplingParams(max_tokens=length), limit=CONTEXT)
            assert text == TOKENIZER.decode(alone)
        rig.wait_idle()


def test_a_slow_reader_delays_nobody_and_is_cut_off() -> None:
    limits = ServerLimits(ping_interval_s=0.1, stall_timeout_s=0.3)
    with make_rig(limits=limits, context_length=2000, num_blocks=400) as rig, serve(rig) as server:
        rig.reply(b"x", ends=False)
        body = completion(max_tokens=400, n=24, stream=True, logprobs=20)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(address_of(server))
        slow.sendall(request_bytes("/v1/completions", body))
        wait_for(lambda: rig.state.num_generations == 1)
        started = time.monotonic()
        rig_status, _ = post(server, "/v1/completions", completion(max_tokens=4))
        assert rig_status == 200
        assert time.monotonic() - started < 2
        rig.wait_idle(seconds=20)
        slow.settimeout(5)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := slow.recv(1 << 20):
                received += part
        assert b"[DONE]" not in received
        slow.close()


def test_health_is_quick_while_large_prompts_are_read() -> None:
    with make_rig(context_length=2000, num_blocks=400) as rig, serve(rig) as server:
        text = "hello world " * 4_000  # 8,000 tokens in this vocabulary
        threads = [
            threading.Thread(target=post, args=(server, "/v1/completions", completion(prompt=text)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        slowest = 0.0
        while any(thread.is_alive() for thread in threads):
            started = time.monotonic()
            assert get(server, "/health")[0] == 200
            slowest = max(slowest, time.monotonic() - started)
        assert slowest < 0.5  # 0.03 on an idle machine
        for thread in threads:
            thread.join()


def test_health_is_quick_beside_idle_connections_and_streams(rig: Rig) -> None:
    rig.runner.step_s = 0.005
    rig.reply("a", ends=False)
    with serve(rig) as server:
        idle = [open_socket(server) for _ in range(100)]
        half = [open_socket(server, b"GET /health HTTP/1.1\r\nHost:") for _ in range(20)]
        streams = [
            open_socket(server, request_bytes(CHAT, chat(stream=True, max_tokens=60))) for _ in range(32)
        ]
        wait_for(lambda: rig.state.num_generations == 32)
        for path in ("/health", "/v1/models"):
            started = time.monotonic()
            assert get(server, path)[0] == 200
            assert time.monotonic() - started < 1
        for connection in [*idle, *half, *streams]:
            connection.close()
        rig.wait_idle()


def read_snapshots(server: HttpServer, count: int) -> list[dict[str, object]]:
    connection = open_socket(server, b"GET /system/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    data = b""
    while data.count(b"event: snapshot\n") < count or not data.endswith(b"\n\n\r\n"):
        data += connection.recv(65536)
    connection.close()
    lines = [line for line in data.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_snapshots_stream_at_once_and_twice_a_second(rig: Rig) -> None:
    with serve(rig) as server:
        started = time.monotonic()
        assert read_snapshots(server, 1)[0]["phase"] == "ready"
        assert time.monotonic() - started < 2
        started = time.monotonic()
        assert len(read_snapshots(server, 3)) == 3
        assert 0.8 < time.monotonic() - started < 4


def test_unreadable_requests_are_refused_in_json(rig: Rig) -> None:
    with serve(rig) as server:
        connection = open_socket(server, b"\x16\x03\x01 nonsense\r\n\r\n")
        data = b""
        while part := connection.recv(65536):
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["error"]["code"] == "invalid_http"
        connection.close()


def test_a_request_without_a_host_is_served(rig: Rig) -> None:
    with serve(rig) as server:
        connection = open_socket(server, b"GET /health HTTP/1.0\r\n\r\n")
        assert read_until(connection, b"}").startswith(b"HTTP/1.1 200")
        connection.close()


def test_a_body_that_stops_is_refused_after_a_while() -> None:
    with make_rig(limits=ServerLimits(body_timeout_s=0.1)) as rig, serve(rig) as server:
        data = request_bytes(CHAT, chat())
        connection = open_socket(server, data[:-5])
        assert b"400 Bad Request" in read_until(connection, b"\r\n\r\n")
        connection.close()


def test_a_huge_announced_body_is_refused_before_it_comes(rig: Rig) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    with serve(rig) as server:
        connection = open_socket(server, head)
        data = read_until(connection, b"request_too_large")
        assert data.startswith(b"HTTP/1.1 413")
        connection.close()


def test_half_sent_headers_time_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.server.http_server._HEADER_TIMEOUT_S", 0.1)
    with serve(rig) as server:
        connection = open_socket(server, b"GET /health HTTP/1.1\r\nHost:")
        connection.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
        connection.close()
