"""Stored keys: what each scope opens, whose class and tenant a request has, and what revoking does."""

from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from appliance.api_keys import KeyFile, KeyRing
from appliance.engine.sequence import SamplingParams, ServiceClass
from appliance.server.access import LOCAL, Access, AccessRules
from appliance.server.app import create_app
from server.rig import Rig, chat, make_rig, wait_for

ADMIN_ONLY = [
    ("POST", "/api/pull"),
    ("DELETE", "/api/delete"),
    ("POST", "/api/copy"),
    ("POST", "/api/create"),
    ("POST", "/system/v1/models/load"),
    ("POST", "/system/v1/snapshot"),
    ("GET", "/system/v1/requests"),
    ("GET", "/metrics"),
    ("GET", "/nothing"),
    ("GET", "/v1x"),
]
FOR_INFERENCE = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/"),
    ("GET", "/props"),
    ("GET", "/api/tags"),
    ("GET", "/system/v1/snapshot"),
    ("GET", "/docs"),
]


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


def secret_of(keys: KeyFile, scope: Any, service_class: Any = "silver") -> dict[str, str]:
    made = keys.create(name=f"{scope}-{service_class}", scope=scope, service_class=service_class)
    return {"authorization": f"Bearer {made.secret}"}


def client_of(rig: Rig, keys: KeyFile, *, is_required: bool = True) -> Any:
    rules = AccessRules(ring=KeyRing(keys), is_required=is_required)
    app = create_app(rig.state, access=rules)
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


@pytest.mark.parametrize(("method", "path"), ADMIN_ONLY)
def test_an_inference_key_opens_nothing_of_the_administrator(
    rig: Rig, keys: KeyFile, method: str, path: str
) -> None:
    inference, admin = secret_of(keys, "inference"), secret_of(keys, "admin")
    with client_of(rig, keys) as client:
        refused = client.request(method, path, headers=inference)
        assert refused.status_code == 403
        assert "--scope admin" in refused.text
        assert client.request(method, path, headers=admin).status_code not in (401, 403)
        assert client.request(method, path).status_code == 401


@pytest.mark.parametrize(("method", "path"), FOR_INFERENCE)
def test_an_inference_key_opens_what_uses_models(rig: Rig, keys: KeyFile, method: str, path: str) -> None:
    inference = secret_of(keys, "inference")
    with client_of(rig, keys) as client:
        assert client.request(method, path, headers=inference).status_code == 200
        assert client.request(method, path).status_code == 401


def test_without_need_for_keys_a_wrong_one_changes_nothing(rig: Rig, keys: KeyFile) -> None:
    inference = secret_of(keys, "inference")
    with client_of(rig, keys, is_required=False) as client:
        assert client.get("/v1/models", headers={"authorization": "Bearer ollama"}).status_code == 200
        assert client.get("/v1/models").status_code == 200
        assert client.post("/api/copy", headers=inference).status_code == 403


def test_a_key_gives_its_class_and_never_a_better_one() -> None:
    silver = Access(tenant="t", scope="inference", service_class=ServiceClass.SILVER)
    assert silver.class_for(ServiceClass.GOLD) is ServiceClass.SILVER
    assert silver.class_for(ServiceClass.SILVER) is ServiceClass.SILVER
    assert silver.class_for(ServiceClass.BRONZE) is ServiceClass.BRONZE
    assert LOCAL.class_for(ServiceClass.GOLD) is ServiceClass.GOLD


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(max_tokens=1)),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1}),
        ("/v1/messages", chat(max_tokens=1)),
        ("/api/chat", chat(options={"num_predict": 1})),
        ("/api/generate", {"model": "tiny", "prompt": "a", "options": {"num_predict": 1}}),
    ],
)
def test_every_protocol_runs_in_the_keys_class(keys: KeyFile, path: str, body: dict[str, Any]) -> None:
    gold = secret_of(keys, "inference", "gold")
    with make_rig(queue_limit=0, max_sequences=1, step_s=0.02) as rig, client_of(rig, keys) as client:
        rig.reply("a" * 200)
        running = rig.engine.submit([5], SamplingParams())
        wait_for(lambda: rig.engine.snapshot().num_running == 1)
        assert client.post(path, json=body, headers=gold).status_code == 429
        refused = {each.service_class: each.num_refused for each in rig.engine.snapshot().classes}
        running.cancel()
    assert refused == {ServiceClass.GOLD: 1, ServiceClass.SILVER: 0, ServiceClass.BRONZE: 0}


def test_a_prompt_computed_for_one_key_is_not_reused_for_another(rig: Rig, keys: KeyFile) -> None:
    first, second = secret_of(keys, "inference"), secret_of(keys, "inference", "gold")
    long = chat(messages=[{"role": "user", "content": "world " * 60}], max_tokens=1)

    def cached(headers: dict[str, str]) -> int:
        usage = client.post("/v1/chat/completions", json=long, headers=headers).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    with client_of(rig, keys) as client:
        assert cached(first) == 0
        assert cached(first) > 0
        assert cached(second) == 0
