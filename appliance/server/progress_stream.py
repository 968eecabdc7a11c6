"""Tells of long work on models line by line, as Ollama's clients read it: pulls and creations.

Knows progress and lines of JSON; the work itself is the library's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
from litestar.enums import ScopeType
from litestar.types import Receive, Scope, Send

from appliance.download.workspace import PullPhase, PullProgress
from appliance.errors import ApplianceError, UnknownModel
from appliance.model_library import ModelLibrary
from appliance.server.appliance_state import ApplianceState
from appliance.server.error_responses import error_json, unexpected_error
from appliance.server.ollama import ModelMissing
from appliance.server.ollama_formats import CONTENT_TYPE
from appliance.server.ollama_schemas import Status
from appliance.server.stream_writer import StreamKind, StreamWriter, send_json, wait_until_gone

SUCCESS = Status(status="success")
# A line for every megabyte of a fast disk helps nobody.
_LINE_INTERVAL_S = 0.1
_WORDS = {
    PullPhase.WAITING: "waiting for another pull of the same model",
    PullPhase.ASSEMBLING: "assembling",
    PullPhase.VERIFYING: "verifying sha256 digest",
    PullPhase.INSTALLED: "writing manifest",
}


class ProgressStream:
    """An ASGI application: one line a status, or the last one alone. Errors before the first are HTTP's."""

    def __init__(self, state: ApplianceState, steps: AsyncIterator[Status], *, is_streamed: bool) -> None:
        self._state = state
        self._steps = steps
        self._is_streamed = is_streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == ScopeType.HTTP
        first = await anext(self._steps)
        if not self._is_streamed:
            last = first
            async for step in self._steps:
                last = step
            await send_json(send, msgspec.json.encode(last))
            return
        watcher = asyncio.create_task(wait_until_gone(receive))
        kind = StreamKind(content_type=CONTENT_TYPE, ping=_line(first))
        writer = StreamWriter(scope, send, self._state.limits, kind=kind)
        try:
            await writer.start()
            await writer.write(_line(first))
            await self._relay(writer, watcher)
            await writer.end()
        finally:
            watcher.cancel()
            writer.close()

    async def _relay(self, writer: StreamWriter, client_gone: "asyncio.Task[None]") -> None:
        """Work that was begun goes on to its end, whether or not somebody still reads."""
        try:
            async for step in self._steps:
                if not client_gone.done():
                    await writer.write(_line(step))
        except ApplianceError as error:
            await writer.write(error_json(error, "/api") + b"\n")
        except Exception as error:  # the status is out already: the client learns of it in words
            await writer.write(error_json(unexpected_error(error), "/api") + b"\n")


async def pull_steps(library: ModelLibrary, name: str) -> AsyncIterator[Status]:
    """Pull a model, telling of each phase and of the bytes. Raises what `ModelLibrary.pull` raises."""
    try:
        library.base_id(name)
    except UnknownModel as error:
        raise ModelMissing(name) from error
    yield Status(status="pulling manifest")
    progress: asyncio.Queue[PullProgress] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def report(moment: PullProgress) -> None:
        loop.call_soon_threadsafe(progress.put_nowait, moment)

    work = asyncio.create_task(asyncio.to_thread(library.pull, name, report))
    digest = library.known_digest(name)
    last: Status | None = None
    while not (work.done() and progress.empty()):
        newest = await _newest(progress)
        status = newest and _status(newest, digest)
        if status and status != last:
            last = status
            yield status
    await work
    yield SUCCESS


async def _newest(progress: "asyncio.Queue[PullProgress]") -> PullProgress | None:
    """Wait a moment, then return the latest of what came."""
    await asyncio.sleep(_LINE_INTERVAL_S)
    newest = None
    while not progress.empty():
        newest = progress.get_nowait()
    return newest


def _status(progress: PullProgress, digest: str) -> Status:
    if progress.phase is not PullPhase.DOWNLOADING:
        return Status(status=_WORDS[progress.phase])
    return Status(
        status=f"pulling {digest.removeprefix('sha256:')[:12] or progress.model_id}",
        digest=digest or None,
        total=progress.total_bytes,
        completed=progress.done_bytes,
    )


async def steps_of(words: list[str], work: Callable[[], None]) -> AsyncIterator[Status]:
    """Do quick work in a thread, then tell what was done."""
    await asyncio.to_thread(work)
    for word in words:
        yield Status(status=word)
    yield SUCCESS


def _line(status: Status) -> bytes:
    return msgspec.json.encode(status) + b"\n"
