"""What the dashboard asks of an appliance besides snapshots: models, logs, a chat. Knows no widgets."""

from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

import httpx
import msgspec

from appliance.server.schemas import FinishedRequests, LogEntries, RequestStages
from tui.model_list import ModelRow, model_rows
from tui.sse import EventDecoder, EventTooLargeError
from tui.wire import ChatChunk, ErrorAnswer, ListedModels, LoadedModels, PullLine, Said, StoredModels

_T = TypeVar("_T")
# Loading and long prompts say nothing for minutes; connecting must not take so long.
_PATIENT = httpx.Timeout(5.0, read=None)


class CallError(Exception):
    """The appliance did not do it; the message says why, for the operator."""


class MissingRouteError(CallError):
    """This appliance does not have what was asked for."""


class ApplianceCalls:
    """Over the connection of an ApplianceClient, which closes it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def models(self) -> list[ModelRow]:
        """Loaded, on the appliance's disk, and in its catalogue where it tells that."""
        stored = (await self._get("/api/tags", StoredModels)).models
        loaded = (await self._get("/api/ps", LoadedModels)).models
        try:
            listed = (await self._get("/system/v1/models", ListedModels)).models
        except MissingRouteError:
            listed = []
        return model_rows(stored, loaded, listed)

    async def finished_requests(self) -> list[RequestStages]:
        """The last that ended, newest first, with their stages."""
        return (await self._get("/system/v1/requests?limit=100", FinishedRequests)).requests

    async def logs(self, after: int) -> LogEntries:
        """The log lines since the one of that number."""
        return await self._get(f"/system/v1/logs?after={after}", LogEntries)

    async def load(self, name: str) -> None:
        """Returns when it is loaded, which may take minutes."""
        await self._post("/api/generate", {"model": name, "stream": False})

    async def unload(self, name: str) -> None:
        """Lets what runs on it end first."""
        await self._post("/api/generate", {"model": name, "keep_alive": 0, "stream": False})

    async def pull(self, name: str) -> AsyncGenerator[PullLine, None]:
        """Downloads a model; tells of each step."""
        decode = msgspec.json.Decoder(PullLine).decode
        body = {"model": name}
        try:
            async with self._http.stream("POST", "/api/pull", json=body, timeout=_PATIENT) as response:
                await _check(response)
                async for text in response.aiter_lines():
                    line = decode(text) if text.strip() else PullLine()
                    if line.error:
                        raise CallError(line.error)
                    yield line
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            raise CallError(_reason(error)) from error

    async def chat(self, model: str | None, said: Sequence[Said]) -> AsyncGenerator[ChatChunk, None]:
        """Streams an answer; closing the generator stops it on the appliance as well."""
        body = {
            **({"model": model} if model else {}),
            "messages": [{"role": one.role, "content": one.content} for one in said],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        events = EventDecoder()
        decode = msgspec.json.Decoder(ChatChunk).decode
        try:
            async with self._http.stream(
                "POST", "/v1/chat/completions", json=body, timeout=_PATIENT
            ) as response:
                await _check(response)
                async for piece in response.aiter_bytes():
                    for event in events.feed(piece):
                        if event.data == b"[DONE]":
                            return
                        yield _unfailed(decode(event.data))
        except (httpx.HTTPError, msgspec.DecodeError, EventTooLargeError) as error:
            raise CallError(_reason(error)) from error

    async def _get(self, path: str, kind: type[_T]) -> _T:
        try:
            response = await self._http.get(path)
            await _check(response)
            return msgspec.json.decode(response.content, type=kind)
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            raise CallError(_reason(error)) from error

    async def _post(self, path: str, body: dict[str, object]) -> None:
        try:
            await _check(await self._http.post(path, json=body, timeout=_PATIENT))
        except httpx.HTTPError as error:
            raise CallError(_reason(error)) from error


async def _check(response: httpx.Response) -> None:
    """Raises CallError with the appliance's own words."""
    if response.is_success:
        return
    body = await response.aread()
    if response.status_code == httpx.codes.NOT_FOUND and b"nothing at" in body.lower():
        raise MissingRouteError("this appliance is older than the dashboard and has no such list")
    try:
        text = msgspec.json.decode(body, type=ErrorAnswer).text
    except msgspec.DecodeError:
        text = ""
    raise CallError(text or f"the appliance answers with status {response.status_code}")


def _unfailed(chunk: ChatChunk) -> ChatChunk:
    if chunk.error is not None:
        raise CallError(chunk.error.message)
    return chunk


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.ConnectError):
        return "the appliance cannot be reached"
    if isinstance(error, httpx.TimeoutException):
        return "the appliance does not answer in time"
    if isinstance(error, httpx.HTTPError):
        return "the appliance broke off"
    return "it answers, but not as an appliance of this version does"
