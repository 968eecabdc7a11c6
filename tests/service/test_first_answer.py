"""What is told of a service's first minute."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from appliance.service import ServiceError
from appliance.service.first_answer import wait_until_ready

LOADING = b'{"status":"unavailable","phase":"loading","detail":"reading the model"}'
READY = b'{"status":"ok","phase":"ready","detail":""}'


@contextmanager
def service(*answers: bytes) -> Iterator[str]:
    """One connection that gets these answers and is closed: then the process has ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer, args=(listener, answers), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


def _answer(listener: socket.socket, answers: tuple[bytes, ...]) -> None:
    connection, _ = listener.accept()
    with connection:
        for answer in answers:
            if not connection.recv(4096):
                return
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))


def test_a_service_that_becomes_ready_needs_no_word() -> None:
    with service(LOADING, LOADING, READY) as address:
        assert wait_until_ready(address, has_tls=False) == ""


def test_a_service_that_ends_while_loading_is_told() -> None:
    with (
        service(LOADING) as address,
        pytest.raises(ServiceError, match="ended while reading the model; its log says why"),
    ):
        wait_until_ready(address, has_tls=False)


def test_a_service_that_stays_up_without_its_gpu_is_a_failure_told_at_once() -> None:
    failed = b'{"status":"unavailable","phase":"failed","detail":"--backend cuda cannot be used: no driver"}'
    with (
        service(LOADING, failed) as address,
        pytest.raises(ServiceError, match="it cannot serve: --backend cuda cannot be used: no driver"),
    ):
        wait_until_ready(address, has_tls=False)


def test_one_that_loads_for_long_is_let_go_on() -> None:
    with service(*[LOADING] * 20) as address:
        assert "not ready yet: reading the model" in wait_until_ready(address, has_tls=False, within_s=1)


def test_nothing_that_answers_is_a_failure_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServiceError, match=f"nothing answers at 127.0.0.1:{port} after 1 s"):
        wait_until_ready(f"127.0.0.1:{port}", has_tls=False, within_s=1)
