"""Writes one open stream to one client, however slow. Knows ASGI and framing; knows no content."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from litestar.types import HTTPScope, Receive, Send

from appliance.server.appliance_state import ServerLimits

# Set in a scope's state by our server: a function that cuts the connection, unsent bytes and all.
ABORT_KEY = "appliance_abort"
# Likewise: a BodyWriter.
WRITER_KEY = "appliance_writer"
PING = b": ping\n\n"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamKind:
    """How a stream is framed, and what keeps it open while there is nothing to say."""

    content_type: bytes = b"text/event-stream; charset=utf-8"
    ping: bytes = PING


EVENT_STREAM = StreamKind()


class BodyWriter(Protocol):
    """A short way for more of a body: past the layers between, which look at its start alone."""

    @property
    def is_free(self) -> bool:
        """Whether more can be written without waiting."""

    def write(self, data: bytes) -> None:
        """Write what is not empty."""


class StreamWriter:
    """Writes one open stream: keeps it alive when there is nothing to say, cuts it when it stalls.

    `nudge` lets the stream's owner, who waits for events, come back with none; an empty write is a ping.
    """

    def __init__(
        self,
        scope: HTTPScope,
        send: Send,
        limits: ServerLimits,
        *,
        nudge: Callable[[], None] = lambda: None,
        kind: StreamKind = EVENT_STREAM,
    ) -> None:
        self._kind = kind
        self._scope = scope
        self._send = send
        self._body: BodyWriter | None = scope["state"].get(WRITER_KEY)
        self._limits = limits
        self._nudge = nudge
        self._sending_since_s: float | None = None
        self._last_sent_s = float("-inf")
        self._pulse = asyncio.create_task(self._watch())

    async def start(self) -> None:
        headers = [
            (b"content-type", self._kind.content_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes, *, news: str = "") -> None:
        """Send, waiting while the client's buffers are full. Nothing to send and a long silence: a ping.

        Where the stream has room for comments, a ping tells `news`.
        """
        if not data:
            if time.monotonic() - self._last_sent_s < 0.9 * self._limits.ping_interval_s:
                return
            data = b": %b\n\n" % news.encode() if news and self._kind.ping == PING else self._kind.ping
        if self.is_free:
            self.write_now(data)
            return
        self._sending_since_s = time.monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending_since_s, self._last_sent_s = None, time.monotonic()

    @property
    def is_free(self) -> bool:
        """Whether `write_now` may be called, between two `write`s."""
        return self._body is not None and self._body.is_free

    def write_now(self, data: bytes) -> None:
        """Send, from wherever on the event loop."""
        assert self._body is not None
        self._body.write(data)
        self._last_sent_s = time.monotonic()

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def close(self) -> None:
        self._pulse.cancel()

    async def _watch(self) -> None:
        """One timer a stream, not one a token: the heap of timers stays small."""
        while True:
            await asyncio.sleep(self._limits.ping_interval_s)
            since_s = self._sending_since_s
            if since_s is None:
                self._nudge()
            elif time.monotonic() - since_s >= self._limits.stall_timeout_s:
                self._cut()

    def _cut(self) -> None:
        abort = self._scope["state"].get(ABORT_KEY)
        if abort is not None:
            _log.info("a client took nothing for %g s and was cut off", self._limits.stall_timeout_s)
            abort()


async def wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
