"""Which model answers now: loads one on demand, unloads it when told or when its keep-alive is over.

Belongs to the event loop. Keeps one model at a time; knows no protocol and no files.
"""

import asyncio
import time
from collections.abc import Callable

from appliance.errors import NotReady, UnknownModel
from appliance.model_library import LibraryModel
from appliance.model_pool import ModelPool, ResidentModel

# Loads a model and starts its engine; called in a worker thread.
Loader = Callable[[LibraryModel], ResidentModel]
FOREVER_S = float("inf")
_POLL_S = 0.05


class Residency:
    """Loads and unloads over a pool."""

    def __init__(self, pool: ModelPool, loader: Loader | None) -> None:
        self._pool = pool
        self._loader = loader
        self._loading = asyncio.Lock()
        self._keep_alive_s: dict[str, float] = {}
        self._used_s: dict[str, float] = {}  # Unix seconds of the last use
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._closings: set[asyncio.Task[None]] = set()

    async def load(self, model: LibraryModel) -> ResidentModel:
        """Return it resident; one load however many ask. Raises NotReady where another has its place."""
        async with self._loading:
            try:
                return self._pool.get(model.base_id)
            except UnknownModel:
                pass
            others = ", ".join(other.model_id for other in self._pool.list())
            if others:
                raise NotReady(
                    f"the model '{model.base_id}' is here but not loaded, and this version keeps one model "
                    f"loaded, now {others}; unload that one first (keep_alive 0), or start with --model"
                )
            if self._loader is None:
                raise NotReady(f"the model '{model.base_id}' is not loaded; start the appliance with it")
            resident = await asyncio.to_thread(self._loader, model)
            self._pool.add(resident)
            return resident

    def unload(self, model_id: str) -> None:
        """Take no more requests for it; what runs ends first, then its memory is free."""
        self._keep_alive_s.pop(model_id, None)
        model = self._pool.remove(model_id)
        if model is not None:
            closing = asyncio.create_task(_close_when_idle(model))
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)

    def used(self, model_id: str, keep_alive_s: float | None = None) -> None:
        """Note a use. `keep_alive_s` is how long it stays after its last use; None leaves that as it is."""
        self._used_s[model_id] = time.time()
        if keep_alive_s is not None:
            self._keep_alive_s[model_id] = keep_alive_s
            timer = self._timers.pop(model_id, None)
            if timer is not None:
                timer.cancel()
            if keep_alive_s != FOREVER_S:
                self._timers[model_id] = asyncio.create_task(self._unload_later(model_id))

    def expires_s(self, model_id: str) -> float:
        """Unix seconds at which it will be unloaded unless it is used; infinity for never."""
        kept_s = self._keep_alive_s.get(model_id, FOREVER_S)
        return self._used_s.get(model_id, time.time()) + kept_s

    async def _unload_later(self, model_id: str) -> None:
        """Wait until nothing used the model for its keep-alive."""
        while (left_s := self.expires_s(model_id) - time.time()) > 0:
            await asyncio.sleep(left_s)
            if any(model.model_id == model_id and model.engine.num_live for model in self._pool.list()):
                self._used_s[model_id] = time.time()
        self.unload(model_id)


async def _close_when_idle(model: ResidentModel) -> None:
    while model.engine.num_live:  # noqa: ASYNC110 (the engine has no event for it)
        await asyncio.sleep(_POLL_S)
    await asyncio.to_thread(model.close)
