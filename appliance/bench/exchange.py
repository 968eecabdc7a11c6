"""One request and its streamed answer over one connection, timed as its bytes arrive.

On a machine that also runs the server every microsecond here is taken from it: while the answer comes, its
pieces are only kept with their times. They are read afterwards.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import msgspec

from appliance.bench.request_timing import RequestTiming
from appliance.bench.response_decoder import ResponseDecoder

Clock = Callable[[], float]
_LAST_CHUNK = b"0\r\n\r\n"
_SHOWN_ERROR_BYTES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where completions are asked for."""

    host: str
    port: int
    path: str
    is_tls: bool
    api_key: str | None

    @classmethod
    def parse(cls, url: str, api_key: str | None) -> Self:
        """Read a server's URL, with or without its /v1. Raises ValueError for one that is not HTTP."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is not a server's URL; write http://host:port")
        is_tls = parts.scheme == "https"
        folder = parts.path.rstrip("/").removesuffix("/v1")
        return cls(
            host=parts.hostname,
            port=parts.port or (443 if is_tls else 80),
            path=f"{folder}/v1/completions",
            is_tls=is_tls,
            api_key=api_key,
        )

    def request(self, body: bytes) -> bytes:
        """The whole request's bytes. The server closes the connection after it."""
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        if self.api_key is not None:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join((*lines, "", "")).encode() + body


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What came over the wire, with times, and how it broke where it did."""

    sent_s: float
    arrivals: tuple[tuple[float, bytes], ...]
    ended_s: float
    failure: str | None = None


async def exchange(target: Target, request: bytes, *, clock: Clock, timeout_s: float) -> Exchange:
    """Send a request on a connection of its own and keep everything until the answer's end."""
    sent_s = clock()
    arrivals: list[tuple[float, bytes]] = []
    failure = None
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _Receiver(arrivals, ended, clock),
                target.host,
                target.port,
                ssl=True if target.is_tls else None,
            )
            try:
                transport.write(request)
                sent_s = clock()
                await ended
            finally:
                transport.close()
    except TimeoutError:
        failure = f"no end after {timeout_s:g} s"
    except OSError as error:
        failure = str(error) or type(error).__name__
    return Exchange(sent_s=sent_s, arrivals=tuple(arrivals), ended_s=clock(), failure=failure)


class _Receiver(asyncio.Protocol):
    """Keeps each piece with its time until the last chunk, or until the server hangs up."""

    def __init__(
        self, arrivals: list[tuple[float, bytes]], ended: asyncio.Future[None], clock: Clock
    ) -> None:
        self._arrivals = arrivals
        self._ended = ended
        self._clock = clock

    def data_received(self, data: bytes) -> None:
        self._arrivals.append((self._clock(), data))
        if data.endswith(_LAST_CHUNK):
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


class _Choice(msgspec.Struct):
    text: str = ""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Chunk)


def read_timing(done: Exchange) -> RequestTiming:
    """Find in an exchange when each piece of text came, how many tokens there were, and what went wrong."""
    decoder = ResponseDecoder()
    times: list[float] = []
    usage: _Usage | None = None
    error = done.failure
    is_done = False
    try:
        for arrived_s, data in done.arrivals:
            for payload in decoder.feed(data):
                if payload == b"[DONE]":
                    is_done = True
                    continue
                chunk = _decoder.decode(payload)
                usage = chunk.usage or usage
                if bytes(chunk.error):
                    error = _shown(bytes(chunk.error))
                if any(choice.text for choice in chunk.choices):
                    times.append(arrived_s)
    except (ValueError, msgspec.DecodeError) as reason:
        error = error or f"the answer cannot be read: {reason}"
    if error is None and decoder.status != 200:
        error = f"status {decoder.status}: {_shown(decoder.rest)}"
    if error is None and not is_done:
        error = "the stream ended without [DONE]"
    return RequestTiming(
        sent_s=done.sent_s,
        chunk_times_s=tuple(times),
        ended_s=done.ended_s,
        num_prompt_tokens=usage.prompt_tokens if usage else None,
        num_output_tokens=usage.completion_tokens if usage else len(times),
        error=error,
    )


def _shown(body: bytes) -> str:
    return body[:_SHOWN_ERROR_BYTES].decode("utf-8", "replace").strip()
