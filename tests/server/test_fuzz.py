"""Ten thousand spoilt requests over real sockets: no 5xx, no hang, and a neighbour's answers stay."""

import contextlib
import copy
import http.client
import json
import random
import threading
from typing import Any

import pytest

from appliance.server.http_server import HttpServer
from server.rig import MODEL_ID, Rig, address_of, chat, chat_text, get, make_rig, post, serve, sse_events

HELLO = [{"role": "user", "content": "hi"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
SCHEMA = {"type": "object", "properties": {"v": {"enum": ["a", 1]}}, "required": ["v"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"v": 1}'}}]
HISTORY = [*HELLO, {"role": "assistant", "content": None, "tool_calls": CALLS}]
HISTORY += [{"role": "tool", "tool_call_id": "c1", "content": "12"}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": SCHEMA}}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "n": 2, "stop": ["x"], "max_tokens": 8}
SAMPLING |= {"logit_bias": {"5": 1}, "presence_penalty": 0.5, "frequency_penalty": 0.5, "min_p": 0.1}
SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": PARTS, **SAMPLING, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": HISTORY, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 20}),
    (
        "/v1/chat/completions",
        {"messages": HELLO, "response_format": FORMAT, "stream": True, "max_tokens": 9},
    ),
    ("/v1/completions", {"prompt": ["a", [5, 6]], **SAMPLING, "echo": True, "logprobs": 1, "best_of": 2}),
    ("/v1/responses", {"input": [{"role": "user", "content": "hi"}], "text": {"format": {"type": "text"}}}),
    (
        "/v1/embeddings",
        {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 1, "pooling": "last"},
    ),
    ("/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    (
        "/v1/messages",
        {"messages": HELLO, "max_tokens": 8, "system": [{"type": "text", "text": "s"}]},
    ),
    ("/v1/messages/count_tokens", {"messages": HELLO, "tools": [{"name": "f", "input_schema": SCHEMA}]}),
    (
        "/api/chat",
        {"messages": HELLO, "options": {"num_predict": 4, "seed": 1}, "format": SCHEMA},
    ),
    ("/api/generate", {"prompt": "a", "options": {"num_predict": 4}, "system": "s", "raw": False}),
    ("/api/embed", {"input": ["a"], "truncate": True, "options": {}}),
    ("/api/show", {"verbose": True}),
    ("/tokenize", {"content": "a", "add_special": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2, 300]}),
    ("/apply-template", {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": True}}),
]
JUNK: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 1e-320),
    *(
        "",
        " ",
        "x",
        "a" * 5000,
        "\x00",
        "\ud800",
        "\ufeff",
        "🌶️",
        "<|im_end|>",
        "../../etc/passwd",
        "NaN",
        "1",
    ),
    *([], [None], [[]], [""], ["x"] * 200, {}, {"": None}, {"a": {"b": []}}, [{}], {"type": "text"}),
    *({"$ref": "#"}, {"type": "object"}, {"pattern": "("}, {"type": "image_url"}, [0] * 300, {"5": None}),
]
WORDS = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e400",
    b"\xff",
    b"\xef\xbb\xbf",
    b"{",
    b"}",
    b'"',
    b",",
    b"\\u12",
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    found = [(value, key) for key in keys]
    return found + [place for key in keys for place in places(value[key])]


def spoilt(source: random.Random) -> tuple[str, bytes]:
    path, fields = source.choice(SEEDS)
    body = {"model": MODEL_ID, **copy.deepcopy(fields)}
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        if not (left := places(body)):
            break
        container, key = source.choice(left)
        if source.random() < 0.15:
            del container[key]
        else:
            container[key] = copy.deepcopy(source.choice(JUNK))
    data = json.dumps(body, ensure_ascii=source.random() < 0.5).encode("utf-8", "surrogatepass")
    if source.random() < 0.2:
        at = source.randrange(len(data))
        data = data[:at] + source.choice(WORDS) + data[at + source.choice((0, 1, 5)) :]
    return path, data


class Sender:
    """One connection that is opened again where the server closed it, as it may after an error."""

    def __init__(self, server: HttpServer) -> None:
        self._address = address_of(server)
        self._connection = http.client.HTTPConnection(*self._address, timeout=30)

    def close(self) -> None:
        self._connection.close()

    def post(self, path: str, data: bytes) -> tuple[int, bytes]:
        try:
            return self._post(path, data)
        except (http.client.RemoteDisconnected, ConnectionError):
            self._connection.close()
            return self._post(path, data)

    def _post(self, path: str, data: bytes) -> tuple[int, bytes]:
        self._connection.request("POST", path, data, {"content-type": "application/json"})
        response = self._connection.getresponse()
        return response.status, response.read()


def fuzz(server: HttpServer, seed: int, number: int, faults: list[str]) -> None:
    source = random.Random(seed)
    with contextlib.closing(Sender(server)) as sender:
        send_all(sender, source, number, faults)


def send_all(sender: Sender, source: random.Random, number: int, faults: list[str]) -> None:
    for _ in range(number):
        path, data = spoilt(source)
        try:
            status, answer = sender.post(path, data)
        except OSError as error:
            faults.append(f"{path} {data[:600]!r}: {error!r}")
            return
        if status >= 500 or (status >= 400 and b"error" not in answer):
            faults.append(f"{path} {data[:600]!r}: {status} {answer[:300]!r}")


def neighbour(server: HttpServer, until: threading.Event, texts: set[str]) -> None:
    while not until.is_set():
        texts.add(chat_text(sse_events(post(server, "/v1/chat/completions", chat(stream=True))[1])))


def run_fuzz(rig: Rig, server: HttpServer, *, number: int, seed: int) -> None:
    faults: list[str] = []
    texts: set[str] = set()
    until = threading.Event()
    beside = threading.Thread(target=neighbour, args=(server, until, texts))
    workers = [
        threading.Thread(target=fuzz, args=(server, seed + index, number // 4, faults)) for index in range(4)
    ]
    for thread in (beside, *workers):
        thread.start()
    for thread in workers:
        thread.join(1200)
        assert not thread.is_alive(), "a request hangs"
    until.set()
    beside.join(30)
    assert not faults, "\n".join(faults[:20])
    assert texts == {"hello world"}
    assert get(server, "/health")[0] == 200
    rig.wait_idle()


def test_a_few_spoilt_requests_are_answered() -> None:
    with make_rig() as rig, serve(rig) as server:
        run_fuzz(rig, server, number=200, seed=7)


@pytest.mark.slow
def test_ten_thousand_spoilt_requests_are_answered() -> None:
    with make_rig() as rig, serve(rig) as server:
        run_fuzz(rig, server, number=10_000, seed=1000)
