"""Sends the one body that a piece of work comes to. Knows ASGI; knows no protocol and no engine.

A client that goes away ends the work at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from litestar.types import Receive, Scope, Send

from appliance.errors import NotReady
from appliance.server.appliance_state import ApplianceState
from appliance.server.stream_writer import send_json, wait_until_gone


class WorkAnswer:
    """An ASGI application that runs `work` and sends the JSON that it returns."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, bytes]], state: ApplianceState) -> None:
        self._work = work
        self._state = state
        self._task: asyncio.Task[bytes] | None = None

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        self._task = task = asyncio.create_task(self._work())
        self._state.generation_started(self)
        watcher = asyncio.create_task(wait_until_gone(receive))
        try:
            await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await send_json(send, _result(task))
        finally:
            watcher.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._state.generation_ended(self)

    def cancel(self) -> None:
        """End the work; its client is told to come back."""
        if self._task is not None:
            self._task.cancel()


def _result(task: "asyncio.Task[bytes]") -> bytes:
    if task.cancelled():
        raise NotReady("the work was ended because the appliance is stopping; ask again later")
    return task.result()
