"""What well-known apps ask before they show anything, from their documented calls, over a real socket."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.server.http_server import HttpServer
from server.rig import MODEL_ID, Rig, address_of, ndjson, serve, sse_events

MESSAGES = [{"role": "system", "content": "You help."}, {"role": "user", "content": "hi"}]


@pytest.fixture
def server(rig: Rig) -> Iterator[HttpServer]:
    with serve(rig) as running:
        yield running


def ask(server: HttpServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address_of(server), timeout=30)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"content-type": "application/json", **headers})
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def read(server: HttpServer, method: str, path: str, body: Any = None, **headers: str) -> Any:
    status, data = ask(server, method, path, body, **headers)
    assert status == 200, (path, data)
    return json.loads(data)


def test_open_webui_as_an_ollama_connection(server: HttpServer) -> None:
    assert ask(server, "GET", "/")[0] == 200
    assert read(server, "GET", "/api/version")["version"]
    (model,) = read(server, "GET", "/api/tags")["models"]
    assert {"name", "model", "modified_at", "size", "digest", "details"} <= model.keys()
    assert read(server, "GET", "/api/ps")["models"][0]["model"] == model["model"]
    chat = {
        "model": model["model"],
        "messages": MESSAGES,
        "options": {"num_ctx": 200, "temperature": 0.7, "stop": ["x"]},
        "stream": True,
        "keep_alive": "5m",
        "format": "",
        "tools": [],
    }
    lines = ndjson(ask(server, "POST", "/api/chat", chat)[1])
    assert lines[-1]["done"] is True


def test_open_webui_as_an_openai_connection(server: HttpServer) -> None:
    headers = {"authorization": "Bearer none", "x-openwebui-user-name": "A"}
    models = read(server, "GET", "/v1/models", **headers)["data"]
    chat = {
        "model": models[0]["id"],
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "u",
        "metadata": {"chat_id": "1"},
    }
    events = sse_events(ask(server, "POST", "/v1/chat/completions", chat, **headers)[1])
    assert events[-1]["usage"]["completion_tokens"] > 0


def test_continue_in_an_editor(server: HttpServer) -> None:
    """Looks for models, reads their context and template, chats, and completes what is typed."""
    (model,) = read(server, "GET", "/api/tags")["models"]
    shown = read(server, "POST", "/api/show", {"name": model["name"]})
    assert isinstance(shown["parameters"], str)
    assert isinstance(shown["template"], str)
    assert isinstance(shown["capabilities"], list)
    fill = {
        "model": model["name"],
        "prompt": "the ",
        "raw": True,
        "stream": True,
        "options": {"num_predict": 9},
    }
    assert ndjson(ask(server, "POST", "/api/generate", fill)[1])[-1]["done"] is True
    chat = {"model": model["name"], "messages": MESSAGES, "stream": True, "keep_alive": 1800}
    assert ndjson(ask(server, "POST", "/api/chat", chat)[1])[-1]["done_reason"] == "stop"


def test_zed(server: HttpServer) -> None:
    """Lists, shows each for its context and abilities, then streams with its own options."""
    for model in read(server, "GET", "/api/tags")["models"]:
        shown = read(server, "POST", "/api/show", {"model": model["name"]})
        assert shown["model_info"]["general.architecture"]
        assert "completion" in shown["capabilities"]
        assert shown["details"]["family"]
    chat = {
        "model": MODEL_ID,
        "messages": MESSAGES,
        "stream": True,
        "keep_alive": -1,
        "options": {"num_ctx": 200, "num_predict": 50, "stop": [], "temperature": 1.0, "top_p": None},
        "tools": [],
        "think": False,
    }
    assert ndjson(ask(server, "POST", "/api/chat", chat)[1])[-1]["eval_count"] > 0


def test_aider_through_its_client_library(server: HttpServer) -> None:
    """Asks what the model can do, then chats by either protocol."""
    shown = read(server, "POST", "/api/show", {"name": MODEL_ID})
    assert "template" in shown
    assert "model_info" in shown
    chat = {"model": MODEL_ID, "messages": MESSAGES, "stream": True, "temperature": 0}
    assert sse_events(ask(server, "POST", "/v1/chat/completions", chat)[1])
    generate = {
        "model": MODEL_ID,
        "prompt": "hi",
        "options": {"temperature": 0, "num_ctx": 200},
        "stream": False,
    }
    assert read(server, "POST", "/api/generate", generate)["response"] == "hello world"


def test_the_ollama_command_line(server: HttpServer) -> None:
    """`ollama run` looks for the server, asks for the model, loads it, and chats."""
    assert ask(server, "HEAD", "/") == (200, b"")
    assert read(server, "POST", "/api/show", {"model": MODEL_ID})["capabilities"]
    loaded = read(server, "POST", "/api/generate", {"model": MODEL_ID, "prompt": "", "keep_alive": None})
    assert loaded["done_reason"] == "load"
    chat = {"model": MODEL_ID, "messages": MESSAGES, "options": {}}
    assert ndjson(ask(server, "POST", "/api/chat", chat)[1])[-1]["done"] is True
    assert ask(server, "HEAD", "/api/tags") == (200, b"")
