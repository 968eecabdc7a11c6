"""The appliance's own routes: health, the snapshot and the stream of snapshots.

Health is answered from memory alone, so that it is quick whatever the model does.
"""

import asyncio
import os
from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, route
from litestar.enums import HttpMethod, ScopeType
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from appliance.errors import InvalidRequest
from appliance.server.appliance_state import ApplianceState
from appliance.server.error_responses import json_response
from appliance.server.schemas import LogEntries, LogEntry, Phase
from appliance.server.snapshot import SnapshotSource
from appliance.server.stream_writer import StreamWriter, wait_until_gone

EVENT_INTERVAL_S = 0.5
_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_RETRY_AFTER_S = "1"
_MAX_DIGITS = 18  # of a line's number: more than a process writes


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /health`: 200 when ready, else 503."""

    status: Literal["ok", "unavailable"]
    phase: Phase
    detail: str
    progress: float | None


class SnapshotEvents:
    """An ASGI application: a snapshot at once, then two a second, until it drains or the client goes."""

    def __init__(self, state: ApplianceState, snapshots: SnapshotSource) -> None:
        self._state = state
        self._snapshots = snapshots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == ScopeType.HTTP
        watcher = asyncio.create_task(wait_until_gone(receive))
        writer = StreamWriter(scope, send, self._state.limits)
        try:
            await writer.start()
            await self._relay(writer, watcher)
        finally:
            watcher.cancel()
            writer.close()

    async def _relay(self, writer: StreamWriter, client_gone: "asyncio.Task[None]") -> None:
        while not client_gone.done():
            is_last = self._state.is_closing
            await writer.write(b"event: snapshot\ndata: %b\n\n" % await self._snapshots.read())
            if is_last:
                await writer.end()
                return
            await asyncio.wait([client_gone], timeout=EVENT_INTERVAL_S)


def system_routes(state: ApplianceState, snapshots: SnapshotSource) -> list[HTTPRouteHandler]:
    """The handlers of `/health` and `/system/v1/`."""

    @route("/health/live", http_method=_LOOK, sync_to_thread=False)
    def report_live() -> Response[bytes]:
        return json_response(b'{"status":"live"}')

    @route("/health", http_method=_LOOK, sync_to_thread=False)
    def report_health() -> Response[bytes]:
        status = state.status
        health = Health(
            status="ok" if status.is_ready else "unavailable",
            phase=status.phase,
            detail=status.detail,
            progress=status.progress,
        )
        body = msgspec.json.encode(health)
        if status.is_ready:
            return json_response(body)
        return json_response(body, status=503, headers={"retry-after": _RETRY_AFTER_S})

    @route("/system/v1/snapshot", http_method=_LOOK)
    async def get_snapshot() -> Response[bytes]:
        return json_response(await snapshots.read())

    @get("/system/v1/events")
    async def stream_snapshots() -> ASGIApp:
        return SnapshotEvents(state, snapshots)

    @route("/system/v1/logs", http_method=_LOOK, sync_to_thread=False)
    def get_logs(request: Request[Any, Any, Any]) -> Response[bytes]:
        after = _line_number(request.query_params.get("after", "0"))
        kept = state.log_ring.after(after) if state.log_ring else []
        lines = tuple(msgspec.convert(line, LogEntry, from_attributes=True) for line in kept)
        return json_response(msgspec.json.encode(LogEntries(pid=os.getpid(), lines=lines)))

    return [report_live, report_health, get_snapshot, stream_snapshots, get_logs]


def _line_number(text: str) -> int:
    """Raises InvalidRequest."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise InvalidRequest(
            f"'after' is '{text[:40]}'; take the number of a line, of at most {_MAX_DIGITS} digits",
            param="after",
        )
    return int(text)
