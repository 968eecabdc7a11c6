"""A small OpenAI-compatible server on a real socket, whose answers are written out beforehand."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

# What the server sends for a request's JSON: the pieces of its answer, each written on its own.
Answer = Callable[[dict[str, Any]], list[bytes]]


@dataclass
class StandIn:
    """Its address, and what it was asked."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0


def event(payload: dict[str, Any] | str) -> bytes:
    return b"data: " + (payload if isinstance(payload, str) else json.dumps(payload)).encode() + b"\n\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: bytes) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *(chunked(data) for data in events), b"0\r\n\r\n"]


def refusal(status: int, message: str) -> list[bytes]:
    body = json.dumps({"error": {"message": message}}).encode()
    return [b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)]


def tokens(num_tokens: int, num_prompt_tokens: int) -> list[bytes]:
    """A whole good answer: one chunk a token, then the usage."""
    texts = [event({"choices": [{"text": f" w{i}"}]}) for i in range(num_tokens)]
    usage = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}
    return stream(
        *texts,
        event({"choices": [{"text": "", "finish_reason": "length"}]}),
        event({"choices": [], "usage": usage}),
        event("[DONE]"),
    )


async def _handle(
    stand_in: StandIn, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    stand_in.heads.append(head)
    stand_in.bodies.append(body)
    stand_in.num_open += 1
    stand_in.most_open = max(stand_in.most_open, stand_in.num_open)
    *pieces, last = answer(body)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.001)
    # Before the end goes out: the client may come back before this task does.
    stand_in.num_open -= 1
    writer.write(last)
    writer.close()
    await writer.wait_closed()


@contextmanager
def serving(answer: Answer) -> Iterator[StandIn]:
    """Serve on a free port, in a thread with a loop of its own."""
    stand_in = StandIn()
    started = threading.Event()
    stop: list[Callable[[], object]] = []

    async def main() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(partial(_handle, stand_in, answer), "127.0.0.1", 0)
        stand_in.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stop.append(partial(loop.call_soon_threadsafe, stopped.set))
        started.set()
        await stopped.wait()
        server.close()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(10)
    try:
        yield stand_in
    finally:
        stop[0]()
        thread.join(10)
