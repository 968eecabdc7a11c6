"""Hand-made models, wheels and a file server for the download tests. Nothing here reaches another machine."""

import hashlib
import http.server
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from appliance.catalog import FileSource, ModelEntry, Source
from appliance.download.store import ModelStore

# An odd length over several chunks, no two chunks alike.
CONTENT = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(100_000)) + b"end"

MakeEntry = Callable[..., ModelEntry]
MakeWheel = Callable[[str, dict[str, bytes]], Path]


@dataclass
class FileServer:
    """Serves one content; the attributes decide how badly it behaves."""

    url: str = ""
    content: bytes = CONTENT
    etag: str = '"one"'
    honours_range: bool = True
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    # One per request, before `status`; 0 is the usual answer.
    statuses: list[int] = field(default_factory=list)
    # Bytes after which the connection is cut, one per request; then it is served to its end.
    cuts: list[int] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def content() -> bytes:
    return CONTENT


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


@pytest.fixture
def make_entry(tmp_path: Path) -> MakeEntry:
    """Build an entry whose default source is a file with the content."""
    origin = tmp_path / "origin.gguf"
    origin.write_bytes(CONTENT)

    def make(
        *sources: Source, sha256: str | None = hashlib.sha256(CONTENT).hexdigest(), **changes: int
    ) -> ModelEntry:
        return ModelEntry(
            model_id="tiny-model",
            name="Tiny",
            description="for tests",
            architecture="llama",
            num_parameters=1000,
            context_length=128,
            licence="Apache-2.0",
            file="tiny.gguf",
            size_bytes=changes.get("size_bytes", len(CONTENT)),
            sha256=sha256,
            sources=sources or (FileSource(path=str(origin)),),
        )

    return make


@pytest.fixture
def make_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeWheel:
    """Build wheels into a folder that is all the index pip has."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    def make(name: str, members: dict[str, bytes]) -> Path:
        info = f"{name}-1.0.dist-info"
        wheel = index / f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in members.items():
                archive.writestr(member, data)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        return wheel

    return make


@pytest.fixture
def server() -> Iterator[FileServer]:
    state = FileServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep test output clean."""

        def do_GET(self) -> None:
            state.requests.append({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}})
            _answer(self, state)

    # Threads end with their requests; daemon ones would outlive a failing test's server.
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def _answer(handler: http.server.BaseHTTPRequestHandler, state: FileServer) -> None:
    asked = handler.headers.get("Range")
    guard = handler.headers.get("If-Range")
    start = 0
    if asked and state.honours_range and guard in (None, state.etag):
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
    body = state.content[start:]
    refusal = state.statuses.pop(0) if state.statuses else state.status
    handler.send_response(refusal or (206 if start else 200))
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}")
    headers = {"ETag": state.etag, "Content-Length": str(len(body))} | state.headers
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    try:
        handler.wfile.write(body[: state.cuts.pop(0)] if state.cuts else body)
    except ConnectionError:
        return  # the client has seen enough
