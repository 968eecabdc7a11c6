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

from appliance.catalog import Catalog, ModelFile
from appliance.download.store import ModelStore
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.stream import MOST_UNREAD
from appliance.formats.gguf import read_gguf
from appliance.model_library import LibraryModel, ModelLibrary
from appliance.model_pool import ModelFacts, ModelPool, ResidentModel, Room
from appliance.server.access import AccessRules
from appliance.server.app import create_app
from appliance.server.appliance_state import ApplianceState, ServerLimits
from appliance.server.http_server import HttpServer
from appliance.server.listener import bind
from appliance.server.residency import Report
from appliance.text.chat_template import ChatTemplate
from appliance.text.constraints import ConstraintCompiler
from appliance.text.gguf_tokenizer import tokenizer_from_gguf
from appliance.text.purpose import WRITING, Purpose
from appliance.text.tokenizer import Tokenizer
from engine.scripted_runner import ScriptedRunner
from formats.gguf_builder import CHATML, tiny_vocabulary, write_gguf

MODEL_ID = "tiny"
CONTEXT = 256
_NUM_BLOCKS, _BLOCK_SIZE = 128, 16


def make_tokenizer(vocabulary: dict[str, Any] | None = None) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "vocabulary.gguf", vocabulary or tiny_vocabulary(), {})
        with read_gguf(path) as file:
            return tokenizer_from_gguf(file)


TOKENIZER = make_tokenizer()
COMPILER = ConstraintCompiler(TOKENIZER)
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
    library: ModelLibrary

    def reply(self, text: str | bytes, *, ends: bool = True) -> None:
        ids = byte_ids(text) if isinstance(text, bytes) else TOKENIZER.encode(text, parse_special=False)
        self.runner.replies = [*ids, EOS] if ends else ids

    def app(self, api_key: str | None = None) -> ASGIApp:
        return create_app(self.state, access=AccessRules(api_key=api_key))

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
    step_s: float = 0.0,
    num_blocks: int = _NUM_BLOCKS,
    is_ready: bool = True,
    catalog: Catalog | None = None,
    **shape: Any,
) -> Iterator[Rig]:
    """`shape` is what `make_resident` takes."""
    runner = ScriptedRunner(
        num_blocks=num_blocks, block_size=_BLOCK_SIZE, vocab_size=TOKENIZER.vocab_size, step_s=step_s
    )

    def load_again(found: LibraryModel, _room: Room, _report: Report) -> ResidentModel:
        rig.scheduler, rig.model = make_resident(runner, num_blocks, model_id=found.base_id, **shape)
        rig.engine = rig.model.engine
        rig.engine.start()
        return rig.model

    with tempfile.TemporaryDirectory() as folder:
        library = make_library(Path(folder), catalog)
        state = ApplianceState(pool=ModelPool(), limits=limits, library=library, loader=load_again)
        scheduler, model = make_resident(runner, num_blocks, **shape)
        rig = Rig(
            runner=runner,
            scheduler=scheduler,
            engine=model.engine,
            model=model,
            state=state,
            library=library,
        )
        rig.reply("hello world")
        rig.engine.start()
        if is_ready:
            state.pool.add(model)
            state.enter("ready")
        try:
            yield rig
        finally:
            rig.engine.stop()


def make_resident(
    runner: ScriptedRunner,
    num_blocks: int,
    *,
    model_id: str = MODEL_ID,
    queue_limit: int = 256,
    max_sequences: int = 32,
    context_length: int = CONTEXT,
    chat_template: str | None = CHATML,
    most_unread: int = MOST_UNREAD,
    purpose: Purpose = WRITING,
    tokenizer: Tokenizer = TOKENIZER,
) -> tuple[Scheduler, ResidentModel]:
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
        model_id=model_id,
        created=1_700_000_000,
        engine=engine,
        tokenizer=tokenizer,
        chat_template=template,
        constraints=COMPILER,
        facts=_facts(context_length, purpose),
        close=engine.stop,
    )
    return scheduler, model


def make_library(folder: Path, catalog: Catalog | None = None) -> ModelLibrary:
    """A library whose store is empty, with the rig's model as a file outside it."""
    path = write_gguf(folder / "Tiny-Q8_0.gguf", tiny_vocabulary() | {"general.architecture": "llama"}, {})
    store = ModelStore(folder / "models")
    file = ModelFile(model_id=MODEL_ID, path=path)
    return ModelLibrary(catalog or Catalog((), folder=folder), store, files=(file,))


def _facts(context_length: int, purpose: Purpose) -> ModelFacts:
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
        purpose=purpose,
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


def ndjson(data: bytes) -> list[Any]:
    """Every line of JSON, each of which must be whole."""
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().splitlines()]


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
