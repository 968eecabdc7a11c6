"""Taking an address, and telling who has it."""

import os
import socket
import subprocess
import sys

import pytest

from appliance.errors import BadSetting, PortTaken
from appliance.server.listener import bind, is_appliance, numeric, url_of
from server.rig import Rig, address_of, serve


@pytest.fixture(autouse=True)
def short_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets that only listen never answer the question who they are."""
    monkeypatch.setattr("appliance.server.listener._PROBE_TIMEOUT_S", 0.2)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_port_zero_takes_a_free_port() -> None:
    with bind("127.0.0.1", 0) as first, bind("localhost", 0) as second:
        assert first.getsockname()[1] != second.getsockname()[1]
        assert url_of(first) == f"http://127.0.0.1:{first.getsockname()[1]}"


def test_the_unspecified_address_is_reached_by_loopback() -> None:
    with bind("0.0.0.0", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_literal_works_where_there_is_ipv6(host: str) -> None:
    if not has_ipv6():
        with pytest.raises(BadSetting, match="host"):
            bind(host, 0)
        return
    with bind(host, 0) as listener:
        assert url_of(listener).startswith("http://[::1]:")


@pytest.mark.parametrize("second_host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_taken_port_names_address_and_owner(second_host: str) -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken) as caught:
            bind(second_host, port)
        assert f"{second_host}:{port}" in caught.value.message
        assert f"process {os.getpid()}" in caught.value.message
        assert "--port" in caught.value.message


def test_another_appliance_is_recognised_and_attaching_offered(rig: Rig) -> None:
    with serve(rig, api_key="secret") as server:
        host, port = address_of(server)
        assert is_appliance(host, port)
        with pytest.raises(PortTaken, match=f"appliance dashboard --url http://127.0.0.1:{port}"):
            bind("127.0.0.1", port)


def test_a_silent_owner_does_not_hold_up_the_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        with pytest.raises(PortTaken, match="choose another --port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7", "x" * 300])
def test_an_address_of_another_machine_is_a_bad_setting(host: str) -> None:
    with pytest.raises(BadSetting, match="--host"):
        bind(host, 0)


def test_a_socket_passed_by_systemd_is_served_on() -> None:
    """The convention: file 3, and the process it is meant for in the environment."""
    with socket.create_server(("127.0.0.1", 0)) as passed:
        port = passed.getsockname()[1]
        code = (
            "import os, sys\n"
            f"os.dup2({passed.fileno()}, 3)\n"
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')\n"
            "from appliance.server.listener import bind, url_of\n"
            "listener = bind('127.0.0.1', 1)\n"
            "print(url_of(listener), 'LISTEN_FDS' in os.environ)\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", code],
            pass_fds=(passed.fileno(),),
            capture_output=True,
            text=True,
            check=True,
        )
    assert result.stdout.split() == [f"http://127.0.0.1:{port}", "False"]


@pytest.mark.parametrize(
    ("host", "bound", "reachable"),
    [
        ("localhost", "127.0.0.1:81", "127.0.0.1:81"),
        ("0.0.0.0", "0.0.0.0:81", "127.0.0.1:81"),
        ("::", "[::]:81", "[::1]:81"),
        ("[::1]", "[::1]:81", "[::1]:81"),
    ],
)
def test_an_address_is_told_in_numbers(host: str, bound: str, reachable: str) -> None:
    assert numeric(host, 81) == (bound, reachable)
