"""Starting and stopping the server thread."""

import socket
import threading
import time

import pytest

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
