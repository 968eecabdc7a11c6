"""Clients that go away, on real sockets, in every state: nothing of theirs goes on, nobody else notices."""

import random
import socket
import struct
import time

import pytest

from server.rig import (
    Rig,
    chat,
    chat_text,
    completion,
    make_rig,
    open_socket,
    post,
    request_bytes,
    serve,
    sse_events,
    wait_for,
)

CHAT = "/v1/chat/completions"


def reset(connection: socket.socket) -> None:
    """Close without a farewell, as a killed process does with unread data."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_client_that_goes_while_decoding_frees_its_place(stream: bool, is_reset: bool) -> None:
    with make_rig(max_sequences=1, step_s=0.005) as rig, serve(rig) as server:
        rig.reply("a", ends=False)
        connection = open_socket(server, request_bytes(CHAT, chat(stream=stream)))
        wait_for(lambda: rig.engine.snapshot().num_output_tokens > 3)
        reset(connection) if is_reset else connection.close()
        started = time.monotonic()
        assert post(server, CHAT, chat(max_tokens=2))[0] == 200
        assert time.monotonic() - started < 1
        rig.wait_idle()
        assert rig.engine.snapshot().num_aborted == 1


def test_a_client_that_goes_while_prefilling_frees_its_place() -> None:
    with make_rig(max_sequences=1, step_s=0.1) as rig, serve(rig) as server:
        connection = open_socket(server, request_bytes(CHAT, chat()))
        wait_for(lambda: rig.engine.snapshot().num_running == 1)
        connection.close()
        wait_for(lambda: rig.engine.num_live == 0, seconds=1)
        rig.wait_idle()


def test_a_client_that_goes_while_queued_harms_no_neighbour() -> None:
    with make_rig(max_sequences=1, step_s=0.003) as rig, serve(rig) as server:
        rig.runner.replies = None
        body = chat(stream=True, max_tokens=80, ignore_eos=True)
        undisturbed = chat_text(sse_events(post(server, CHAT, body)[1]))
        first = open_socket(server, request_bytes(CHAT, body))
        wait_for(lambda: rig.engine.snapshot().num_running == 1)
        second = open_socket(server, request_bytes(CHAT, chat(stream=True)))
        wait_for(lambda: rig.engine.snapshot().num_waiting == 1)
        second.close()
        data = b""
        while b"[DONE]" not in data:
            data += first.recv(65536)
        first.close()
        joined = "".join(line for line in data.decode().split("\r\n") if line.startswith("data"))
        assert chat_text(sse_events(joined.encode())) == undisturbed
        rig.wait_idle()


def test_a_client_that_goes_before_its_body_is_complete_costs_nothing(rig: Rig) -> None:
    with serve(rig) as server:
        open_socket(server, request_bytes(CHAT, chat())[:-5]).close()
        assert post(server, CHAT, chat())[0] == 200
        assert rig.engine.snapshot().num_finished == 1


def test_all_choices_of_a_client_that_goes_are_ended() -> None:
    with make_rig(step_s=0.005) as rig, serve(rig) as server:
        rig.reply("a", ends=False)
        connection = open_socket(server, request_bytes("/v1/completions", completion(prompt=["a", "b"], n=4)))
        wait_for(lambda: rig.engine.snapshot().num_running == 8)
        connection.close()
        rig.wait_idle(seconds=1)
        assert rig.engine.snapshot().num_aborted == 8


def test_five_hundred_aborted_requests_leak_no_block() -> None:
    chance = random.Random(5)
    with make_rig(max_sequences=16, step_s=0.001, num_blocks=64) as rig, serve(rig) as server:
        rig.reply("a", ends=False)
        open_ones: list[socket.socket] = []
        for number in range(500):
            body = chat(stream=number % 2 == 0, max_tokens=200)
            open_ones.append(open_socket(server, request_bytes(CHAT, body)))
            if number % 5 == 0:
                time.sleep(0.004)  # lets some begin to decode
            if len(open_ones) > 20:
                victim = open_ones.pop(chance.randrange(len(open_ones)))
                reset(victim) if number % 3 else victim.close()
        wait_for(lambda: rig.state.num_generations >= 10)
        for connection in open_ones:
            connection.close()
        wait_for(lambda: not server._server.server_state.connections)
        rig.wait_idle(seconds=10)
        assert rig.engine.snapshot().num_aborted > 300
        rig.reply("hello world")
        assert post(server, CHAT, chat())[0] == 200
        rig.wait_idle()
