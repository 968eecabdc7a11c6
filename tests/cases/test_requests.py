"""Every request of the list against the whole application: the right status, the field named, still alive."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient
from litestar.types import ASGIApp

from cases.requests import ALL, CHAT, EMBED, MESSAGES, OLLAMA_CHAT, OLLAMA_TEXT, RESPONSES, TEXT, Case
from server.rig import MODEL_ID, Rig, chat, make_rig

Client = TestClient[ASGIApp]
HELLO = [{"role": "user", "content": "hi"}]
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 60},
    TEXT: {"prompt": "the", "max_tokens": 4},
    RESPONSES: {"input": "hi"},
    EMBED: {"input": "hi"},
    OLLAMA_CHAT: {"messages": HELLO, "stream": False},
    OLLAMA_TEXT: {"prompt": "hi", "stream": False},
    MESSAGES: {"messages": HELLO, "max_tokens": 8},
    "/api/show": {},
}
STREAMED = (CHAT, TEXT, RESPONSES, OLLAMA_CHAT, MESSAGES)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with make_rig() as made:
        yield made
        made.wait_idle()


@pytest.fixture(scope="module")
def client(rig: Rig) -> Iterator[Client]:
    with rig.client() as made:
        yield made


def name_of(case: Case) -> str:
    return f"{case.id}{case.path}-{str(case.fields)[:50]}"


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_a_request_is_answered_rightly(client: Client, case: Case) -> None:
    body = {"model": MODEL_ID, **BASES[case.path], **case.fields}
    send(client, case, body)
    if case.path in STREAMED:
        send(client, case, {**body, "stream": True})


def send(client: Client, case: Case, body: dict[str, Any]) -> None:
    """JSON allows no infinity, and some clients write one: it goes out as they write it."""
    headers = {"content-type": "application/json"}
    answer = client.post(case.path, content=json.dumps(body).replace("Infinity", "1e400"), headers=headers)
    assert answer.status_code == case.status, answer.text[:500]
    if case.status == 200:
        assert "\ufffd" not in answer.text
        return
    error = answer.json()["error"]
    said = error if isinstance(error, str) else f"{error.get('param')} {error['message']}"
    assert case.names in said


def test_the_server_is_alive_after_all_of_them(rig: Rig, client: Client) -> None:
    assert client.post(CHAT, json=chat()).json()["choices"][0]["message"]["content"] == "hello world"
    assert client.get("/health").status_code == 200
    rig.wait_idle()
