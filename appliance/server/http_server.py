"""Runs the HTTP application on a bound socket, in a thread and event loop of its own. Knows no routes.

uvicorn does the work. What it lacks is here: a limit on half-sent headers, JSON for unreadable requests, a
way to cut a stalled client, and a shutdown that ends long answers in words rather than mid-air.
"""

import asyncio
import importlib
import logging
import socket
import threading
import time
from asyncio import TimerHandle, Transport
from collections.abc import Callable

import uvicorn
from litestar.types import ASGIApp
from uvicorn._types import ASGISendCallable, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from appliance.engine.stream import call_on_loop
from appliance.server.appliance_state import ApplianceState
from appliance.server.certificate import Certificate
from appliance.server.error_responses import encode_error
from appliance.server.listener import SERVER_NAME, url_of
from appliance.server.stream_writer import ABORT_KEY, WRITER_KEY

_HEADER_TIMEOUT_S = 20.0
_KEEP_ALIVE_S = 75
# Of one request's line and headers: browsers with many cookies send a few thousand.
_MAX_HEADER_BYTES = 64 * 2**10
# Most systems allow a process 1,024 open files; model, log and engine files need some.
_MAX_CONNECTIONS = 900
# Of a stop's grace, kept for the last words of answers that did not finish in time.
_LAST_WORDS_S = 0.5
_POLL_S = 0.02
_log = logging.getLogger(__name__)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists (not on Windows), else the standard loop."""
    try:
        return importlib.import_module("uvloop").new_event_loop  # type: ignore[no-any-return]  # no types
    except ImportError:
        return None


class Connection(HttpToolsProtocol):
    """One client's connection."""

    _header_timer: TimerHandle | None = None
    _is_surplus = False  # beyond the connections that may be open at once
    _num_header_bytes = 0  # of the request whose headers come now
    _num_pending_bytes = 0  # received while its headers are not complete

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._is_surplus = len(self.connections) > _MAX_CONNECTIONS
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A single header without end is never told of; only its bytes are seen.
        self._num_pending_bytes += len(data) if self._header_timer is not None else 0
        if self._num_pending_bytes > _MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_header_bytes = self._num_pending_bytes = 0
        self._expect_headers()
        self.scope["state"][ABORT_KEY] = self.transport.abort

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._headers_came()
        if self._is_surplus:
            raise ValueError("too many connections")  # the parser hands it on as an error of its own
        super().on_headers_complete()
        self.scope["state"][WRITER_KEY] = _BodyWriter(self.cycle)
        if self.scope["http_version"] == "1.0":
            self.cycle.send = _until_close(self.cycle)  # type: ignore[assignment, method-assign]

    def send_400_response(self, msg: str) -> None:
        if self._is_surplus:
            message = f"{_MAX_CONNECTIONS} connections are open, the most; close some, or try again later"
            self._refuse(503, "Service Unavailable", message, "too_many_connections")
        elif self._num_header_bytes > _MAX_HEADER_BYTES:
            self._refuse_headers()
        else:
            self._refuse(400, "Bad Request", f"{msg.rstrip('.').lower()}; send HTTP/1.1", "invalid_http")

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > _MAX_HEADER_BYTES:
            raise ValueError("headers too large")  # the parser hands it on as an error of its own

    def _refuse_headers(self) -> None:
        message = f"the headers are larger than {_MAX_HEADER_BYTES // 2**10} KiB; send fewer or shorter ones"
        self._refuse(431, "Request Header Fields Too Large", message, "headers_too_large")

    def _refuse(self, status: int, reason: str, message: str, code: str) -> None:
        body = encode_error(status, message, code=code)
        head = (
            f"HTTP/1.1 {status} {reason}\r\nserver: {SERVER_NAME}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _expect_headers(self) -> None:
        self._headers_came()
        self._header_timer = self.loop.call_later(_HEADER_TIMEOUT_S, self.transport.abort)

    def _headers_came(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class _BodyWriter:
    """Writes more of a body that has begun, at once."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def is_free(self) -> bool:
        """False where the client's buffers are full, it is gone, or the body comes in no chunks."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (
            cycle.flow.write_paused or cycle.disconnected or cycle.response_complete
        )

    def write(self, data: bytes) -> None:
        assert data, "an empty chunk would be the last"
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def _until_close(cycle: RequestResponseCycle) -> ASGISendCallable:
    """A `send` for HTTP/1.0, which knows no chunks: a body of unknown length is plain and ends with the
    connection."""
    send = cycle.send
    is_plain = False

    async def send_plain(message: ASGISendEvent) -> None:
        nonlocal is_plain
        if message["type"] == "http.response.start":
            is_plain = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = False if is_plain else None
        elif message["type"] == "http.response.body" and is_plain:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_plain


class _Server(uvicorn.Server):
    """uvicorn's server with our way to stop."""

    def __init__(self, config: uvicorn.Config, state: ApplianceState) -> None:
        super().__init__(config)
        self.has_started = threading.Event()
        self._state = state
        self._stop_by_s = float("inf")  # monotonic clock

    def stop_by(self, moment_s: float) -> None:
        self._stop_by_s = min(self._stop_by_s, moment_s)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse newcomers, let answers finish, then end them in words, then cut."""
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if await self._is_quiet(spare_s=_LAST_WORDS_S):
            return
        self._state.cancel_generations()
        if await self._is_quiet():
            return
        _log.warning("cutting %d connections that did not end in time", len(self.server_state.connections))
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(2 * _POLL_S)  # lets the answers see it and free their sequences

    async def _is_quiet(self, *, spare_s: float = 0.0) -> bool:
        """Wait until nothing is under way; False if the time to stop, less `spare_s`, comes first."""
        while self.server_state.connections or self.server_state.tasks:
            if time.monotonic() >= self._stop_by_s - spare_s:
                return False
            await asyncio.sleep(_POLL_S)
        return True


class HttpServer:
    """The running server. Start it once; stop it from any thread. `url` is the first listener's."""

    def __init__(
        self,
        app: ASGIApp,
        *listeners: socket.socket,
        state: ApplianceState,
        certificate: Certificate | None = None,
    ) -> None:
        self.url = url_of(listeners[0], scheme="https" if certificate else "http")
        self._listeners = listeners
        self._state = state
        self._config = uvicorn.Config(
            app,
            http=Connection,
            loop="none",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            headers=[("server", SERVER_NAME)],
            timeout_keep_alive=_KEEP_ALIVE_S,
            ssl_certfile=certificate.file if certificate else None,
            ssl_keyfile=certificate.key_file if certificate else None,
        )
        self._server = _Server(self._config, state)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Return when requests are answered."""
        self._thread.start()
        while not self._server.has_started.wait(_POLL_S):
            if not self._thread.is_alive():
                raise RuntimeError("the HTTP server ended while it started; its log line says why")

    def stop(self, grace_s: float) -> None:
        """Enter draining, give answers `grace_s` seconds, and end. A second call may shorten that."""
        self._state.enter("draining")
        self._server.stop_by(time.monotonic() + grace_s)
        if self._thread.is_alive():
            self._thread.join()
        for listener in self._listeners:
            listener.close()

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called on the event loop, which has started. Any thread."""
        assert self._loop is not None, "the server was not started"
        call_on_loop(self._loop, function)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            self._loop = runner.get_loop()
            runner.run(self._server.serve(sockets=list(self._listeners)))
