"""Pages of other origins: none without a rule; with one they may ask, read, and send any header."""

from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.errors import BadSetting
from appliance.server.access import AccessRules
from appliance.server.app import create_app
from appliance.server.cross_origin import OriginRules
from appliance.server.security import allowed_names
from server.rig import Rig, chat

PAGE = "http://localhost:5174"
CHAT = "/v1/chat/completions"
SDK_HEADERS = (
    "authorization,content-type,x-stainless-os,x-stainless-timeout,x-stainless-helper-method,openai-beta"
)
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": SDK_HEADERS,
}


def client_of(
    rig: Rig, *, key: str | None = None, origins: str | None = None, hosts: str | None = None
) -> Any:
    app: ASGIApp = create_app(
        rig.state,
        access=AccessRules(api_key=key),
        hosts=allowed_names(hosts),
        origins=OriginRules.from_text(origins),
    )
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


@pytest.fixture
def open_client(rig: Rig) -> Iterator[Any]:
    with client_of(rig, origins=f"{PAGE}, https://app.example") as client:
        yield client


def test_a_foreign_page_is_refused_and_nothing_runs(rig: Rig, client: Any) -> None:
    for origin in (PAGE, "https://evil.example", "null"):
        answer = client.post(CHAT, json=chat(), headers={"origin": origin})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "foreign_origin"
        assert "access-control-allow-origin" not in answer.headers
    assert client.options(CHAT, headers=PREFLIGHT).status_code == 403
    assert rig.runner.num_steps == 0


def test_the_refusal_has_the_protocols_own_form(client: Any) -> None:
    headers = {"origin": PAGE}
    assert list(client.post("/api/chat", json={}, headers=headers).json()) == ["error"]
    assert client.post("/v1/messages", json={}, headers=headers).json()["type"] == "error"


def test_the_appliances_own_page_may_use_it(client: Any) -> None:
    assert client.post(CHAT, json=chat(), headers={"origin": "http://127.0.0.1"}).status_code == 200


def test_a_preflight_of_an_allowed_page_allows_what_it_asks(open_client: Any) -> None:
    answer = open_client.options(CHAT, headers=PREFLIGHT)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["vary"] == "Origin"
    allowed = {name.strip() for name in answer.headers["access-control-allow-headers"].split(",")}
    assert allowed == set(SDK_HEADERS.split(","))
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


def test_an_allowed_page_may_read_answers_streams_and_errors(open_client: Any) -> None:
    for body in (chat(), chat(stream=True), chat(temperature=9)):
        answer = open_client.post(CHAT, json=body, headers={"origin": PAGE})
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "access-control-allow-credentials" not in answer.headers
    assert (
        open_client.get("/v1/nope", headers={"origin": PAGE}).headers["access-control-allow-origin"] == PAGE
    )
    other = open_client.post(CHAT, json=chat(), headers={"origin": "https://evil.example"})
    assert other.status_code == 403
    assert "access-control-allow-origin" not in other.headers


def test_no_origin_no_headers(open_client: Any) -> None:
    assert "access-control-allow-origin" not in open_client.post(CHAT, json=chat()).headers


def test_a_preflight_needs_no_key_and_a_request_does(rig: Rig) -> None:
    with client_of(rig, key="secret", origins=PAGE) as client:
        assert client.options(CHAT, headers=PREFLIGHT).status_code == 204
        refused = client.post(CHAT, json=chat(), headers={"origin": PAGE})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == PAGE
        key = {"authorization": "Bearer secret"}
        assert client.post(CHAT, json=chat(), headers={"origin": PAGE, **key}).status_code == 200


def test_with_a_key_an_unknown_page_is_not_told_anything(rig: Rig) -> None:
    with client_of(rig, key="secret") as client:
        preflight = client.options(CHAT, headers=PREFLIGHT)
        assert "access-control-allow-origin" not in preflight.headers
        key = {"authorization": "Bearer secret", "origin": "app://notes"}
        answer = client.post(CHAT, json=chat(), headers=key)
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


def test_a_star_allows_every_page_and_never_credentials(rig: Rig) -> None:
    with client_of(rig, origins="*") as client:
        answer = client.post(CHAT, json=chat(), headers={"origin": "https://any.example"})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


def test_header_names_that_are_none_are_not_repeated(open_client: Any) -> None:
    answer = open_client.options(CHAT, headers={**PREFLIGHT, "access-control-request-headers": "a b, <c>"})
    assert answer.status_code == 204
    assert "access-control-allow-headers" not in answer.headers


def test_foreign_hosts_are_refused_first_and_extra_ones_by_setting(rig: Rig) -> None:
    with client_of(rig, origins=PAGE, hosts="box.lan") as client:
        assert client.get("/v1/models", headers={"host": "box.lan:11500"}).status_code == 200
        assert client.get("/v1/models", headers={"host": "BOX.LAN"}).status_code == 200
        evil = {**PREFLIGHT, "host": "attacker.example:11500"}
        assert client.options(CHAT, headers=evil).status_code == 403
        for path in ("/v1/models", "/api/tags", "/health", "/nope", "/"):
            assert client.get(path, headers={"host": "attacker.example"}).status_code == 403
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]", "[::1]:80"):
            assert client.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("text", ["localhost", "http://", "http://a/b", "http://a b", "*://x"])
def test_an_origin_that_is_none_is_a_bad_setting(text: str) -> None:
    with pytest.raises(BadSetting, match="--allowed-origins"):
        OriginRules.from_text(text)


@pytest.mark.parametrize("text", ["http://box", "box.lan:80", "[::2]"])
def test_a_host_that_is_none_is_a_bad_setting(text: str) -> None:
    with pytest.raises(BadSetting, match="--allowed-hosts"):
        allowed_names(text)
