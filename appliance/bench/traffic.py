"""Sends planned requests: from so many clients (closed loop), or each at its time (open loop)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from appliance.bench.exchange import Exchange, read_timing
from appliance.bench.request_timing import RequestTiming
from appliance.bench.session import Session
from appliance.bench.workload import Planned

OnDone = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Closed:
    """So many clients, each sending its next request when its last one ended."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class Open:
    """Each request at its time, in seconds from the first, however many are still under way."""

    times_s: tuple[float, ...]


Pattern = Closed | Open


async def send_all(
    session: Session, plans: Sequence[Planned], pattern: Pattern, on_done: OnDone = lambda: None
) -> tuple[RequestTiming, ...]:
    """Send every request and wait for the last. `on_done` hears of each answer's end."""
    requests = [session.request(p.prompt_tokens, p.output_tokens, prompt=p.prompt) for p in plans]
    done: list[Exchange] = []

    async def send(request: bytes) -> None:
        done.append(await session.send(request))
        on_done()

    if isinstance(pattern, Closed):
        source = iter(requests)
        await asyncio.gather(*(_client(source, send) for _ in range(pattern.concurrency)))
    else:
        start_s = session.clock()
        async with asyncio.TaskGroup() as tasks:
            for request, at_s in zip(requests, pattern.times_s, strict=True):
                await asyncio.sleep(start_s + at_s - session.clock())
                tasks.create_task(send(request))
    return tuple(read_timing(one) for one in done)


async def _client(requests: Iterator[bytes], send: Callable[[bytes], Awaitable[None]]) -> None:
    """One client: the next request of all goes out when its last one ended."""
    for request in requests:
        await send(request)
