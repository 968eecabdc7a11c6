"""The document tells of every route there is and of no other; the page shows it and asks nobody."""

import json
import re
from typing import Any

from litestar import Litestar
from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.server.openapi import build_document
from appliance.server.openapi_table import OPERATIONS
from server.rig import MODEL_ID, Rig

Client = TestClient[ASGIApp]
# Not for clients: the greeting, and the document itself.
UNTOLD = {"/", "/web/{name}", "/openapi.json", "/docs"}


def test_the_document_and_the_routes_are_the_same(rig: Rig) -> None:
    app: object = rig.app()
    while not isinstance(app, Litestar):  # the gate and others stand before it
        app = app._app  # type: ignore[attr-defined]
    served = {
        (method, path)
        for route in app.routes
        for path in [re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)]
        for method in getattr(route, "methods", ())
        if method not in ("OPTIONS", "HEAD") and path not in UNTOLD
    }
    assert {(o.method, o.path) for o in OPERATIONS} == served


def test_every_reference_leads_somewhere(client: Client) -> None:
    document = client.get("/openapi.json").json()
    assert document == json.loads(json.dumps(build_document()))
    assert document["openapi"].startswith("3.1")
    for name in re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)):
        assert name in document["components"]["schemas"]


def test_every_name_in_a_path_is_described() -> None:
    for path, methods in build_document()["paths"].items():
        for operation in methods.values():
            named = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"]
            assert named == re.findall(r"{([^}]+)}", path), path


def test_answers_have_the_fields_that_the_document_requires(client: Client) -> None:
    document = client.get("/openapi.json").json()
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": MODEL_ID, "messages": messages, "max_tokens": 50, "prompt": "hi", "content": "hi"}
    body |= {"tokens": [1], "stream": False}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"):
        _check(document, path, "post", client.post(path, json=body))
    for path in ("/api/chat", "/api/generate", "/api/show", "/tokenize", "/detokenize", "/apply-template"):
        _check(document, path, "post", client.post(path, json=body))
    for path in ("/v1/models", "/api/tags", "/api/ps", "/api/version", "/props", "/health"):
        _check(document, path, "get", client.get(path))


def _check(document: Any, path: str, method: str, answer: Any) -> None:
    assert answer.status_code == 200, (path, answer.text)
    schema = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    described = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    assert set(described["required"]) <= answer.json().keys(), path
    assert answer.json().keys() <= set(described["properties"]), path


def test_the_page_is_whole_and_asks_nobody(client: Client) -> None:
    answer = client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for operation in OPERATIONS:
        assert operation.path in answer.text
    assert "<script" not in answer.text
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", answer.text)
    assert client.head("/docs").content == b""
