"""Keeps long computations off the event loop. Knows no work of its own."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from appliance.errors import InvalidRequest

# Templating and tokenizing take about 1 ms per 1,000 characters: more would be felt by every stream.
_MAX_CHARS_ON_EVENT_LOOP = 2048
_ResultT = TypeVar("_ResultT")


async def run_text_work(num_chars: int, work: Callable[[], _ResultT]) -> _ResultT:
    """Run small work here, large work in a thread: the event loop must answer others meanwhile."""
    try:
        if num_chars <= _MAX_CHARS_ON_EVENT_LOOP:
            return work()
        return await asyncio.to_thread(work)
    except RecursionError:
        raise InvalidRequest("the request is nested too deeply for the template; send fewer levels") from None


async def run_in_thread(work: Callable[[], _ResultT], *, limit_s: float, field: str) -> _ResultT:
    """Run work of unknown size. Raises InvalidRequest past the limit; the work then ends unheard."""
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.to_thread(work)
    except TimeoutError:
        raise InvalidRequest(
            f"'{field}' took more than {limit_s:g} s to compile; send something simpler", param=field
        ) from None
    except RecursionError:
        raise InvalidRequest(f"'{field}' is nested too deeply; flatten it", param=field) from None
