"""Follows an appliance over HTTP: a stream of snapshots that survives its death. Knows no widgets.

`GET /system/v1/events` while it can, `GET /system/v1/snapshot` where a stream cannot pass, and the reason
in plain words when neither answers.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType

import httpx
import msgspec

from appliance.server.schemas import SystemSnapshot
from tui.calls import ApplianceCalls
from tui.sse import EventDecoder, EventTooLargeError

EVENTS_PATH = "/system/v1/events"
SNAPSHOT_PATH = "/system/v1/snapshot"

_TIMEOUT_S = 5.0
_LONGEST_RETRY_S = 5.0
# Polling is a makeshift: after this long the stream is tried again.
_POLL_SPAN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A snapshot, and whether it had to be asked for."""

    snapshot: SystemSnapshot
    is_polled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The appliance does not answer: why, how many tries have failed, and when the next one is made."""

    reason: str
    num_tries: int
    retry_s: float
    is_refused: bool = False  # something answers there, and not to this key


class UnreachableError(Exception):
    """No snapshot can be had; the message says why, for the operator."""


class RefusedError(UnreachableError):
    """Something answers, but not to this key."""


class _NoStreamError(Exception):
    """The events cannot be streamed here; snapshots may still be asked for one by one."""


class ApplianceClient:
    """One appliance's system API. `transport` replaces the network in tests."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        first_retry_s: float = 0.25,
        poll_interval_s: float = 0.5,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.has_api_key = api_key is not None
        self._first_retry_s = first_retry_s
        self._poll_interval_s = poll_interval_s
        self._decoder = msgspec.json.Decoder(SystemSnapshot)
        # Certificates are read only where they are used (50 ms); a local address never goes to a proxy.
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=_TIMEOUT_S,
            transport=transport,
            verify=self.base_url.startswith("https:"),
            trust_env=False,
        )
        self.calls = ApplianceCalls(self._http)

    async def __aenter__(self) -> "ApplianceClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def snapshot(self) -> SystemSnapshot:
        """One snapshot, asked for. Raises UnreachableError."""
        try:
            response = await self._http.get(SNAPSHOT_PATH)
        except httpx.HTTPError as error:
            raise UnreachableError(_transport_reason(error)) from error
        if response.status_code != httpx.codes.OK:
            raise UnreachableError(self._status_reason(response.status_code))
        return self._decode(response.content)

    async def watch(self) -> AsyncGenerator[Sighting | Outage, None]:
        """Snapshots for ever; between two lives of the appliance, an Outage for each try that failed."""
        num_tries = 0
        while True:
            reason, is_refused = "the appliance closed the connection", False
            try:
                async with aclosing(self._follow()) as sightings:
                    async for sighting in sightings:
                        num_tries = 0
                        yield sighting
            except UnreachableError as error:
                reason, is_refused = str(error), isinstance(error, RefusedError)
            retry_s = min(self._first_retry_s * 2**num_tries, _LONGEST_RETRY_S)
            num_tries += 1
            yield Outage(reason=reason, num_tries=num_tries, retry_s=retry_s, is_refused=is_refused)
            await asyncio.sleep(retry_s)

    async def _follow(self) -> AsyncGenerator[Sighting, None]:
        """Streams until the appliance ends the stream; polls for a while wherever it cannot be streamed."""
        while True:
            try:
                async with aclosing(self._stream()) as snapshots:
                    async for snapshot in snapshots:
                        yield Sighting(snapshot=snapshot, is_polled=False)
                return
            except _NoStreamError:
                for _ in range(max(1, round(_POLL_SPAN_S / max(self._poll_interval_s, 0.1)))):
                    yield Sighting(snapshot=await self.snapshot(), is_polled=True)
                    await asyncio.sleep(self._poll_interval_s)

    async def _stream(self) -> AsyncGenerator[SystemSnapshot, None]:
        """Raises _NoStreamError, UnreachableError."""
        events = EventDecoder()
        try:
            async with self._http.stream(
                "GET", EVENTS_PATH, headers={"Accept": "text/event-stream"}
            ) as response:
                self._check_stream(response)
                async for piece in response.aiter_bytes():
                    for event in events.feed(piece):
                        if event.name == "snapshot":
                            yield self._decode(event.data)
        except httpx.ReadTimeout as error:
            raise _NoStreamError from error
        except EventTooLargeError as error:
            raise UnreachableError("what answers there is not an appliance") from error
        except httpx.HTTPError as error:
            raise UnreachableError(_transport_reason(error)) from error

    def _check_stream(self, response: httpx.Response) -> None:
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise RefusedError(self._status_reason(response.status_code))
        if response.status_code != httpx.codes.OK or not is_stream:
            raise _NoStreamError

    def _decode(self, body: bytes) -> SystemSnapshot:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreachableError(
                "it answers, but not as an appliance of this version does; use the dashboard it came with"
            ) from error

    def _status_reason(self, status: int) -> str:
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return "it refused the API key" if self.has_api_key else "it asks for a key; pass --api-key KEY"
        if status == httpx.codes.NOT_FOUND:
            return "what answers there is not an appliance"
        return f"it answers with status {status}"


def _transport_reason(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.ConnectError):
        return "nothing listens at this address"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {_TIMEOUT_S:.0f} s"
    return "the connection broke"
