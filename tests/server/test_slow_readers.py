"""Readers that crawl or stop, on real sockets: nobody waits for them, and their backlog is bounded."""

import contextlib
import json
import socket
import time

import psutil
import pytest

from appliance.server.appliance_state import ServerLimits
from appliance.server.generation_group import GenerationGroup
from appliance.server.http_server import HttpServer
from server.rig import (
    address_of,
    completion,
    make_rig,
    post,
    request_bytes,
    serve,
    sse_events,
    wait_for,
)

URL = "/v1/completions"
CLOSING = "Connection: close\r\n"
PATIENT = ServerLimits(ping_interval_s=0.05, stall_timeout_s=60)


def narrow_socket(server: HttpServer, data: bytes) -> socket.socket:
    """A client on a connection whose both ends take little on its behalf."""
    server._listeners[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)  # what is accepted inherits it
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect(address_of(server))
    connection.sendall(data)
    return connection


def read_rest(connection: socket.socket) -> bytes:
    connection.settimeout(20)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 20):
            received += part
    return received


def test_eight_stalled_readers_delay_nobody_and_leave_little_behind() -> None:
    with make_rig(limits=PATIENT, context_length=1000, num_blocks=600) as rig:
        rig.reply(b"x", ends=False)
        body = completion(max_tokens=900, stream=True, logprobs=5)
        with serve(rig) as server:
            stalled = [narrow_socket(server, request_bytes(URL, body)) for _ in range(8)]
            wait_for(lambda: rig.state.num_generations == 8)
            before = psutil.Process().memory_info().rss
            assert post(server, URL, completion(max_tokens=40))[0] == 200
            wait_for(lambda: rig.engine.num_live == 0, seconds=60)
            assert rig.engine.snapshot().num_used_blocks == 0
            groups = [g for g in rig.state._generations if isinstance(g, GenerationGroup)]
            assert [len(group._ready) for group in groups] == [256] * 8
            assert psutil.Process().memory_info().rss - before < 64 * 2**20
            assert post(server, URL, completion(max_tokens=4))[0] == 200
            for connection in stalled:
                connection.close()
            rig.wait_idle(seconds=20)


def test_a_reader_too_far_behind_is_told_why_its_answer_ended() -> None:
    with make_rig(limits=PATIENT, context_length=3000, num_blocks=200, most_unread=100) as rig:
        rig.reply(b"x", ends=False)
        with serve(rig) as server:
            body = completion(max_tokens=2900, stream=True)
            connection = narrow_socket(server, request_bytes(URL, body, extra=CLOSING))
            wait_for(lambda: rig.engine.num_live == 0 and rig.engine.snapshot().num_aborted == 1, seconds=60)
            data = read_rest(connection)
            connection.close()
            lines = [line for line in data.split(b"\n") if line.startswith(b"data: {")]
            error = json.loads(lines[-1].removeprefix(b"data: "))["error"]
            assert "its reader fell too far behind" in error["message"]
            rig.wait_idle()


def test_a_slow_reader_that_keeps_up_in_the_end_gets_everything() -> None:
    with make_rig(limits=PATIENT, context_length=4000, num_blocks=400) as rig, serve(rig) as server:
        rig.runner.replies = None
        body = completion(max_tokens=900, stream=True, ignore_eos=True)
        fast = sse_events(post(server, URL, body)[1])
        connection = narrow_socket(server, request_bytes(URL, body, extra=CLOSING))
        wait_for(lambda: rig.engine.snapshot().num_finished == 2, seconds=30)
        data = read_rest(connection)
        connection.close()
        events = b"".join(part for part in data.split(b"\r\n") if part.startswith(b"data"))
        texts = ["".join(e["choices"][0]["text"] for e in found) for found in (fast, sse_events(events))]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_comes_back_after_each_break_finds_its_place_free(is_streamed: bool) -> None:
    with make_rig(max_sequences=1, step_s=0.002) as rig, serve(rig) as server:
        rig.reply("a", ends=False)
        for round_number in range(15):
            body = completion(max_tokens=200, stream=is_streamed)
            connection = narrow_socket(server, request_bytes(URL, body))
            if round_number % 3:
                wait_for(lambda: rig.engine.num_live > 0)
            if round_number % 3 == 2:
                time.sleep(0.01)
            connection.close()
        started_s = time.monotonic()
        assert post(server, URL, completion(max_tokens=2))[0] == 200
        assert time.monotonic() - started_s < 5
        rig.wait_idle(seconds=10)
