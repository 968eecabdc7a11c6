import json
from collections.abc import AsyncIterator, Callable

import httpx
import msgspec
import pytest

from tui.client import ApplianceClient, Outage, Sighting, UnreachableError
from tui.sse import Event, EventDecoder

pytestmark = pytest.mark.anyio

Answer = Callable[[httpx.Request], httpx.Response]


class Pieces(httpx.AsyncByteStream):
    """A body that arrives in pieces and then ends, or breaks."""

    def __init__(self, *pieces: bytes, error: Exception | None = None) -> None:
        self._pieces = pieces
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error


def stream(*pieces: bytes, error: Exception | None = None) -> httpx.Response:
    return httpx.Response(
        200, headers={"content-type": "text/event-stream"}, stream=Pieces(*pieces, error=error)
    )


def event(snapshot) -> bytes:
    return b"event: snapshot\ndata: " + msgspec.json.encode(snapshot) + b"\n\n"


def client_of(answer: Answer, api_key: str | None = None) -> ApplianceClient:
    return ApplianceClient(
        "http://appliance:11500/",
        api_key,
        httpx.MockTransport(answer),
        first_retry_s=0.0,
        poll_interval_s=0.0,
    )


async def first_events(client: ApplianceClient, number: int) -> list[Sighting | Outage]:
    events: list[Sighting | Outage] = []
    async with client:
        watch = client.watch()
        async for one in watch:
            events.append(one)
            if len(events) == number:
                await watch.aclose()
    return events


async def test_snapshots_stream_in_order_over_any_cut_of_the_bytes(snapshots) -> None:
    body = (
        b": hello\r\n\r\nevent: other\ndata: {}\n\n" + event(snapshots.idle(1.0)) + event(snapshots.busy(2.0))
    )
    pieces = [body[index : index + 7] for index in range(0, len(body), 7)]
    events = await first_events(client_of(lambda _: stream(*pieces)), 2)
    assert [one.snapshot for one in events] == [snapshots.idle(1.0), snapshots.busy(2.0)]
    assert not any(one.is_polled for one in events)


async def test_fields_of_a_newer_appliance_are_ignored(snapshots) -> None:
    newer = {**json.loads(msgspec.json.encode(snapshots.idle())), "from_the_future": {"x": 1}}
    client = client_of(lambda _: httpx.Response(200, json=newer))
    async with client:
        assert await client.snapshot() == snapshots.idle()


async def test_the_stream_is_taken_up_again_after_it_broke(snapshots) -> None:
    answers = iter(
        [
            stream(event(snapshots.idle(1.0)), error=httpx.ReadError("reset")),
            httpx.ConnectError("refused"),
            httpx.ConnectError("refused"),
            stream(event(snapshots.idle(2.0))),
        ]
    )

    def answer(_: httpx.Request) -> httpx.Response:
        one = next(answers)
        if isinstance(one, Exception):
            raise one
        return one

    events = await first_events(client_of(answer), 6)
    assert [type(one).__name__ for one in events] == ["Sighting", *["Outage"] * 3, "Sighting", "Outage"]
    assert [one.num_tries for one in events if isinstance(one, Outage)] == [1, 2, 3, 1]
    assert [one.reason for one in events if isinstance(one, Outage)] == [
        "the connection broke",
        "nothing listens at this address",
        "nothing listens at this address",
        "the appliance closed the connection",
    ]


async def test_retries_are_spaced_wider_up_to_five_seconds() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = ApplianceClient("http://appliance", transport=httpx.MockTransport(answer), first_retry_s=0.001)
    events = await first_events(client, 4)
    assert [one.retry_s for one in events] == pytest.approx([0.001, 0.002, 0.004, 0.008])
    slow = ApplianceClient("http://appliance", transport=httpx.MockTransport(answer), first_retry_s=60.0)
    assert [one.retry_s for one in await first_events(slow, 1)] == [5.0]


@pytest.mark.parametrize(
    "refusal",
    [
        httpx.Response(404),
        httpx.Response(200, text="<html>"),
        httpx.ReadTimeout("silent"),
    ],
)
async def test_where_nothing_can_be_streamed_snapshots_are_polled(refusal, snapshots) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/system/v1/snapshot":
            return httpx.Response(200, content=msgspec.json.encode(snapshots.idle()))
        if isinstance(refusal, Exception):
            raise refusal
        return httpx.Response(refusal.status_code, content=refusal.content)

    events = await first_events(client_of(answer), 3)
    assert events == [Sighting(snapshot=snapshots.idle(), is_polled=True)] * 3


@pytest.mark.parametrize(
    ("response", "api_key", "reason"),
    [
        (httpx.Response(401), None, "it asks for a key; pass --api-key KEY"),
        (httpx.Response(403), "wrong", "it refused the API key"),
        (httpx.Response(404), None, "what answers there is not an appliance"),
        (httpx.Response(502), None, "it answers with status 502"),
        (
            httpx.Response(200, text="<html>"),
            None,
            "it answers, but not as an appliance of this version does",
        ),
        (
            httpx.Response(200, json={"version": 3}),
            None,
            "it answers, but not as an appliance of this version",
        ),
    ],
)
async def test_a_refusal_is_told_in_plain_words(response, api_key, reason) -> None:
    client = client_of(lambda _: httpx.Response(response.status_code, content=response.content), api_key)
    async with client:
        with pytest.raises(UnreachableError, match=reason):
            await client.snapshot()


async def test_the_key_goes_along_as_a_bearer_token(snapshots) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer sesame"
        assert str(request.url) == "http://appliance:11500/system/v1/events"
        return stream(event(snapshots.idle()))

    assert isinstance((await first_events(client_of(answer, "sesame"), 1))[0], Sighting)


def test_data_lines_are_joined_and_an_event_without_data_is_none() -> None:
    events = list(
        EventDecoder().feed(b"event: a\ndata: 1\ndata:2\n\nevent: b\n\ndata: 3\n\ndata: unfinished")
    )
    assert events == [Event("a", b"1\n2"), Event("message", b"3")]
