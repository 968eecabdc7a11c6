"""An appliance without a model: the real engine, tokenizer and HTTP application, a scripted runner."""

import http.client
import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litestar.testing import TestClient
from litestar.types import ASGIApp

from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.stream import MOST_UNREAD
from appliance.formats.gguf import read_gguf
from appliance.model_pool import ModelFacts, ModelPool, ResidentModel
from appliance.server.app import create_app
from appliance.server.appliance_state import ApplianceState, ServerLimits
from appliance.server.http_server import HttpServer
from appliance.server.listener import bind
from appliance.text.chat_template import ChatTemplate
from appliance.text.gguf_tokenizer import tokenizer_from_gguf
from appliance.text.tokenizer import Tokenizer
from engine.scripted_runner import ScriptedRunner
from formats.gguf_builder import CHATML, tiny_vocabulary, write_gguf

MODEL_ID = "tiny"
CONTEXT = 256
_NUM_BLOCKS, _BLOCK_SIZE = 128, 16


def make_tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "vocabulary.gguf", tiny_vocabulary(), {})
        with read_gguf(path) as file:
            return tokenizer_from_gguf(file)


TOKENIZER = make_tokenizer()
EOS = TOKENIZER.eos_token_id


def byte_ids(data: bytes) -> list[int]:
    """One token per byte: id 3 + byte in the tiny vocabulary."""
    return [3 + byte for byte in data]


@dataclass
class Rig:
    """The parts, for a test to turn. `reply` sets what the model says to everybody."""

    runner: ScriptedRunner
    scheduler: Scheduler
    engine: Engine
    model: ResidentModel
    state: ApplianceState

    def reply(self, text: str | bytes, *, ends: bool = True) -> None:
        ids = byte_ids(text) if isinstance(text, bytes) else TOKENIZER.encode(text, parse_special=False)
        self.runner.replies = [*ids, EOS] if ends else ids

    def app(self, api_key: str | None = None) -> ASGIApp:
        return create_app(self.state, api_key=api_key)

    def client(self, api_key: str | None = None) -> TestClient[ASGIApp]:
        return TestClient(self.app(api_key), base_url="http://127.0.0.1", raise_server_exceptions=False)

    def wait_idle(self, seconds: float = 5.0) -> None:
        """Wait until no sequence lives and no answer is under way, then check every block."""
        wait_for(lambda: not self.engine.num_live and not self.state.num_generations, seconds)
        assert self.engine.snapshot().num_used_blocks == 0
        self.scheduler.check_invariants()


@contextmanager
def make_rig(
    *,
    limits: ServerLimits | None = None,
    queue_limit: int = 256,
    most_unread: int = MOST_UNREAD,
    max_sequences: int = 32,
    step_s: float = 0.0,
    num_blocks: int = _NUM_BLOCKS,
    context_length: int = CONTEXT,
    chat_template: str | None = CHATML,
    is_ready: bool = True,
) -> Iterator[Rig]:
    runner = ScriptedRunner(
        num_blocks=num_blocks, block_size=_BLOCK_SIZE, vocab_size=TOKENIZER.vocab_size, step_s=step_s
    )
    scheduler = Scheduler(
        BlockPool(num_blocks, _BLOCK_SIZE),
        max_sequences=max_sequences,
        step_tokens=512,
        context_length=context_length,
    )
    engine = Engine(runner, scheduler, queue_limit=queue_limit, most_unread=most_unread)
    template = (
        ChatTemplate(chat_template, TOKENIZER.bos_token, TOKENIZER.eos_token) if chat_template else None
    )
    model = ResidentModel(
        model_id=MODEL_ID,
        created=1_700_000_000,
        engine=engine,
        tokenizer=TOKENIZER,
        chat_template=template,
        facts=_facts(context_length),
        close=engine.stop,
    )
    state = ApplianceState(pool=ModelPool(), limits=limits)
    rig = Rig(runner=runner, scheduler=scheduler, engine=engine, model=model, state=state)
    rig.reply("hello world")
    engine.start()
    if is_ready:
        state.pool.add(model)
        state.enter("ready")
    try:
        yield rig
    finally:
        engine.stop()


def _facts(context_length: int) -> ModelFacts:
    return ModelFacts(
        architecture="llama",
        num_parameters=1000,
        context_length=context_length,
        precision="f32",
        kv_dtype="f32",
        weights_bytes=4000,
        kv_pool_bytes=8192,
        backend="scripted",
        device="cpu",
        num_threads=1,
    )


@contextmanager
def serve(rig: Rig, *, api_key: str | None = None) -> Iterator[HttpServer]:
    """The application on a real socket."""
    server = HttpServer(rig.app(api_key), bind("127.0.0.1", 0), state=rig.state)
    server.start()
    try:
        yield server
    finally:
        server.stop(grace_s=0.5)


def address_of(server: HttpServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    return host, int(port)


def request_bytes(path: str, body: dict[str, Any], *, extra: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{extra}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def open_socket(server: HttpServer, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(address_of(server), timeout=10)
    connection.sendall(data)
    return connection


def post(server: HttpServer, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address_of(server), timeout=10)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    status, data = response.status, response.read()
    connection.close()
    return status, data


def get(server: HttpServer, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address_of(server), timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    status, data = response.status, response.read()
    connection.close()
    return status, data


def read_until(connection: socket.socket, needle: bytes, seconds: float = 5.0) -> bytes:
    connection.settimeout(seconds)
    data = b""
    while needle not in data:
        part = connection.recv(65536)
        assert part, f"closed after {data!r}"
        data += part
    return data


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "messages": [{"role": "user", "content": "hi"}], **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "prompt": "the world", **fields}


def sse_events(data: bytes) -> list[Any]:
    """The JSON of every `data:` line but [DONE], each of which must be whole."""
    lines = [line for line in data.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def chat_text(events: list[Any], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.005)
