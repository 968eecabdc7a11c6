"""Who may enter: loopback names without a key, holders of the key with one."""

import socket
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient

from appliance.errors import BadSetting
from appliance.server.security import check_exposure, host_name, is_loopback
from server.rig import Rig, chat, serve

KEY = "k3y-with-ümlaut"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "::1", "[::1]"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, has_key=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "", "localhost.example.org"])
def test_other_addresses_need_a_key(host: str) -> None:
    with pytest.raises(BadSetting, match="--api-key"):
        check_exposure(host, has_key=False)
    check_exposure(host, has_key=True)


@settings(deadline=None)
@given(st.text())
def test_no_host_header_breaks_the_check(text: str) -> None:
    is_loopback(host_name(text))


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]", "localhost:80", "127.0.0.1:11500", "[::1]:1"]
)
def test_loopback_names_are_served_without_a_key(client: TestClient, host: str) -> None:
    assert client.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["attacker.example:11500", "attacker.example", "localhost.attacker.example", "192.168.1.5"]
)
def test_a_rebound_name_is_refused(rig: Rig, client: TestClient, host: str) -> None:
    for response in (
        client.get("/v1/models", headers={"host": host}),
        client.post("/v1/chat/completions", json=chat(), headers={"host": host}),
        client.get("/health", headers={"host": host}),
    ):
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "foreign_host"
    assert rig.runner.num_steps == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": KEY},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/props", "/nope", "/system/v1/snapshot", "/healthy"])
def test_a_missing_or_wrong_key_is_401_everywhere(rig: Rig, headers: dict[str, str], path: str) -> None:
    with rig.client(KEY) as client:
        encoded = {name: value.encode() for name, value in headers.items()}
        response = client.get(path, headers=encoded)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert KEY not in response.text


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"authorization": f"BEARER  {KEY} "},
        {"x-api-key": KEY},
    ],
)
def test_the_key_opens_every_host_name(rig: Rig, headers: dict[str, str]) -> None:
    with rig.client(KEY) as client:
        encoded = {name: value.encode() for name, value in headers.items()} | {"host": b"appliance.example"}
        assert client.get("/v1/models", headers=encoded).status_code == 200


@pytest.mark.parametrize("num_hosts", [0, 2])
def test_a_request_of_http_1_1_has_one_host(rig: Rig, num_hosts: int) -> None:
    with serve(rig) as server:
        connection = socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), timeout=30)
        hosts = b"Host: 127.0.0.1\r\n" * num_hosts
        with connection:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_two_authorization_headers_are_refused(rig: Rig) -> None:
    with rig.client("key") as client:
        headers = [("authorization", "Bearer key"), ("authorization", "Bearer other")]
        assert client.get("/v1/models", headers=headers).status_code == 401


def test_health_and_preflight_need_no_key(rig: Rig) -> None:
    with rig.client(KEY) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/health/").status_code == 200
        assert client.get("/health/live").status_code == 200
        assert client.options("/v1/chat/completions").status_code == 204
