"""Bodies that are not JSON, too deep, too large or of another type; paths and methods that are not there."""

import gzip
import json

import pytest
from litestar.testing import TestClient

from appliance.server.appliance_state import ServerLimits
from server.rig import MODEL_ID, Rig, chat, completion

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
VALID = json.dumps(chat()).encode()


@pytest.mark.parametrize(
    "body",
    [
        b'{: "model":"x"}',
        b"",
        b"[]",
        b"null",
        b'"text"',
        b'{"messages":[],}',
        b"{}{}",
        b"\xef\xbb\xbf" + VALID,
        VALID.decode().encode("utf-16"),
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"model":"m","tools":' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"foo":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"metadata":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
)
def test_what_is_not_a_request_in_json_is_refused(client: TestClient, body: bytes) -> None:
    response = client.post(CHAT, content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert client.post(CHAT, content=VALID, headers=JSON).status_code == 200


def test_the_last_of_duplicate_keys_counts(client: TestClient) -> None:
    body = VALID[:-1] + b', "max_tokens": 1, "max_tokens": 2}'
    assert client.post(CHAT, content=body, headers=JSON).json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", ""]
)
def test_json_by_any_of_its_names_is_taken(client: TestClient, content_type: str) -> None:
    assert client.post(CHAT, content=VALID, headers={"content-type": content_type}).status_code == 200


def test_a_body_without_a_type_is_taken(client: TestClient) -> None:
    request = client.build_request("POST", CHAT, content=VALID)
    request.headers.pop("content-type", None)
    assert client.send(request).status_code == 200


def test_a_compressed_body_is_told_as_such(client: TestClient) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = client.post(CHAT, content=gzip.compress(VALID), headers=headers)
    assert response.status_code == 415
    assert "gzip" in response.json()["error"]["message"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "text/json"])
def test_other_types_are_never_executed(rig: Rig, client: TestClient, content_type: str) -> None:
    response = client.post(CHAT, content=VALID, headers={"content-type": content_type})
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"
    assert rig.runner.num_steps == 0


def test_a_body_past_the_limit_is_refused_in_json(rig: Rig, client: TestClient) -> None:
    rig.state.limits = ServerLimits(max_body_bytes=1000)
    for body in (b" " * 1001, iter([b" " * 600, b" " * 600])):
        response = client.post(CHAT, content=body, headers=JSON)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
    assert client.post(CHAT, content=VALID + b" " * (1000 - len(VALID)), headers=JSON).status_code == 200


def test_a_large_body_within_the_limit_is_read(rig: Rig, client: TestClient) -> None:
    body = json.dumps(chat(metadata={"x": "y" * 3_000_000})).encode()
    assert client.post(CHAT, content=body, headers=JSON).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nope", 404),
        ("GET", "/nope", 404),
        ("POST", "/v1/models", 405),
        ("GET", CHAT, 405),
        ("DELETE", "/health", 405),
    ],
)
def test_wrong_paths_and_methods_are_refused_in_json(
    client: TestClient, method: str, path: str, status: int
) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert path in response.json()["error"]["message"]


def test_a_trailing_slash_changes_nothing(client: TestClient) -> None:
    assert client.get("/v1/models/").status_code == 200
    assert client.post(CHAT + "/", json=chat()).status_code == 200


def test_models_are_listed_and_found(client: TestClient) -> None:
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    (card,) = body["data"]
    assert (card["id"], card["object"], card["created"]) == (MODEL_ID, "model", 1_700_000_000)
    assert client.get(f"/v1/models/{MODEL_ID}").json() == card
    for name in ("nope", "a/b", "%00"):
        response = client.get(f"/v1/models/{name}")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"


def test_an_unexpected_error_tells_the_client_only_where_to_look(
    rig: Rig, client: TestClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(rig.engine, "submit_choices", explode)
    response = client.post(CHAT, json=chat())
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["type"] == "server_error"
    assert "secret" not in response.text
    error_id = error["message"].split()[-1]
    record = next(record for record in caplog.records if error_id in record.message)
    assert record.exc_info is not None


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_is_an_error_without_internals(rig: Rig, client: TestClient, stream: bool) -> None:
    rig.runner.error = RuntimeError("secret /path")
    response = client.post(CHAT, json=chat(stream=stream))
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "generation_failed"
    assert "secret" not in response.text
    rig.runner.error = None
    assert client.post("/v1/completions", json=completion()).status_code == 200


def test_a_wait_past_the_deadline_is_503(rig: Rig, client: TestClient) -> None:
    rig.state.limits = ServerLimits(deadline_s=0.0)
    response = client.post(CHAT, json=chat())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert int(response.headers["retry-after"]) >= 1


def test_an_error_in_a_stream_is_its_last_event(rig: Rig, client: TestClient) -> None:
    from appliance.engine.batch import FailureKind, StepFailure

    failure = StepFailure(kind=FailureKind.NOT_FINITE, message="the model produced non-finite values")
    rig.runner.fail = lambda scheduled: failure if scheduled.num_output_tokens >= 2 else None
    response = client.post(CHAT, json=chat(stream=True))
    assert response.status_code == 200
    lines = [line for line in response.text.split("\n") if line]
    assert "non-finite" in json.loads(lines[-1].removeprefix("data: "))["error"]["message"]
    assert "[DONE]" not in response.text
    whole = client.post(CHAT, json=chat())
    assert whole.status_code == 500
    assert "non-finite" in whole.json()["error"]["message"]


def test_a_broken_text_side_ends_the_request_and_its_sequence(
    rig: Rig, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise KeyError("secret")

    rig.reply("a", ends=False)
    monkeypatch.setattr("appliance.server.output_text.OutputText.push", explode)
    response = client.post(CHAT, json=chat())
    assert response.status_code == 500
    assert "secret" not in response.text
    rig.wait_idle()
