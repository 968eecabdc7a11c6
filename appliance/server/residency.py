"""Which models answer now: loads them on demand, unloads them when told, when idle, or to make room.

Belongs to the event loop. A model that must go takes no new requests and ends when its last answer has.
Knows no protocol and no files.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Literal

from appliance.errors import NotEnoughMemory, NotReady, UnknownModel
from appliance.model_library import LibraryModel
from appliance.model_pool import ModelPool, ResidentModel, Room, untouched_bytes

# What is happening, and the share done where it is known; called from the loading thread.
Report = Callable[[str, float | None], None]
# Loads a model and starts its engine; called in a worker thread. Raises NotEnoughMemory, and others.
Loader = Callable[[LibraryModel, Room, Report], ResidentModel]
FOREVER_S = float("inf")
_POLL_S = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyRules:
    """`keep_alive_s` is how long a model stays unused where no request says otherwise."""

    keep_alive_s: float = FOREVER_S
    max_models: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    text: str
    share: float | None = None


class Residency:
    """Loads and unloads over a pool."""

    def __init__(self, pool: ModelPool, loader: Loader | None, rules: ResidencyRules) -> None:
        self._pool = pool
        self._loader = loader
        self._rules = rules
        self._turn = asyncio.Lock()  # loads go one after the other: each measures what is free
        self._loads: dict[str, asyncio.Task[ResidentModel]] = {}
        self._progress: dict[str, LoadProgress] = {}
        self._holders: dict[str, set[asyncio.Task[object]]] = {}
        self._keep_alive_s: dict[str, float] = {}
        self._used_s: dict[str, float] = {}  # Unix seconds of the last use
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._closings: dict[asyncio.Task[None], ResidentModel] = {}

    async def load(self, model: LibraryModel) -> ResidentModel:
        """Return it resident; one load however many ask, and it goes on when they leave.

        Raises NotReady or NotEnoughMemory where no room can be made, and what the loader raises.
        """
        try:
            resident = self._pool.get(model.base_id)
        except UnknownModel:
            resident = await asyncio.shield(self._load_of(model))
        self.hold(resident)
        return resident

    def hold(self, model: ResidentModel) -> None:
        """Keep it from closing until the request that is being answered has ended."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return  # not on the event loop: nothing that is answered
        holders = self._holders.setdefault(model.model_id, set())
        if task is None or task in holders:
            return
        holders.add(task)
        self.begin(model.model_id)
        task.add_done_callback(lambda done: self._let_go(model.model_id, done))

    def begin(self, model_id: str) -> None:
        """Count its keep-alive from now on, where nobody has begun: of one that was loaded at the start."""
        if model_id not in self._keep_alive_s:
            self.used(model_id, self._rules.keep_alive_s)

    def unload(self, model_id: str, *, spares_pinned: bool = False) -> None:
        """Take no more requests for it; what runs ends first, then its memory is free."""
        if spares_pinned and self._pool.is_pinned(model_id):
            return
        self._start_closing(model_id)

    def used(self, model_id: str, keep_alive_s: float | None = None) -> None:
        """Note a use. `keep_alive_s` is how long it stays after its last use; None leaves that as it is."""
        self._used_s[model_id] = time.time()
        if keep_alive_s is not None:
            self._keep_alive_s[model_id] = keep_alive_s
            self._stop_timer(model_id)
            if keep_alive_s != FOREVER_S:
                # A context of its own: what it logs later belongs to no request.
                self._timers[model_id] = asyncio.create_task(self._unload_later(model_id), context=Context())

    def expires_s(self, model_id: str) -> float:
        """Unix seconds at which it will be unloaded unless it is used; infinity for never."""
        if self._pool.is_pinned(model_id):
            return FOREVER_S
        kept_s = self._keep_alive_s.get(model_id, FOREVER_S)
        return self._used_s.get(model_id, time.time()) + kept_s

    def state_of(self, model_id: str) -> Literal["loaded", "loading", "draining"] | None:
        if any(model.model_id == model_id for model in self._pool.list()):
            return "loaded"
        if model_id in self._loads:
            return "loading"
        return "draining" if any(m.model_id == model_id for m in self._closings.values()) else None

    def progress_of(self, model_id: str) -> LoadProgress | None:
        """Where its loading stands; None while it is not being loaded."""
        return self._progress.get(model_id)

    def _load_of(self, model: LibraryModel) -> "asyncio.Task[ResidentModel]":
        task = self._loads.get(model.base_id)
        if task is None:
            task = asyncio.create_task(self._load(model))
            self._loads[model.base_id] = task
            task.add_done_callback(lambda done: self._load_ended(model.base_id, done))
        return task

    async def _load(self, model: LibraryModel) -> ResidentModel:
        if self._loader is None:
            raise NotReady(f"the model '{model.base_id}' is not loaded; start the appliance with it")
        self._progress[model.base_id] = LoadProgress(text="waiting for another model")
        async with self._turn:
            while len(self._pool.list()) >= self._rules.max_models:
                if not await self._evict():
                    raise NotReady(
                        f"{self._rules.max_models} models are loaded, the most, and all are pinned; "
                        "unload one, or raise --max-models"
                    )
            resident = await self._load_with_room(model, self._loader)
            self._pool.add(resident)
            self.used(resident.model_id, self._rules.keep_alive_s)
            return resident

    async def _load_with_room(self, model: LibraryModel, loader: Loader) -> ResidentModel:
        """Evict one after the other until it fits."""

        def report(text: str, share: float | None) -> None:
            self._progress[model.base_id] = LoadProgress(text=text, share=share)

        while True:
            try:
                return await asyncio.to_thread(loader, model, self._room(), report)
            except NotEnoughMemory as error:
                _log.info("%s does not fit beside what is loaded: %s", model.base_id, error.message)
                if not await self._evict():
                    raise
            gc.collect()  # what the failed load held must not count against the next

    def _room(self) -> Room:
        draining = sum(map(untouched_bytes, self._closings.values()))
        return Room(promised_bytes=self._pool.untouched_bytes() + draining)

    async def _evict(self) -> bool:
        """Unload the least recently used, an idle one before all others; False where none may go."""
        may_go = [model for model in self._pool.list() if not self._pool.is_pinned(model.model_id)]
        if not may_go:
            return False
        oldest = min(may_go, key=lambda m: (self._is_busy(m), self._used_s.get(m.model_id, 0.0)))
        _log.info("unloading %s, used least recently, to make room", oldest.model_id)
        closing = self._start_closing(oldest.model_id)
        if closing is not None:
            await asyncio.shield(closing)
        return True

    def _start_closing(self, model_id: str) -> "asyncio.Task[None] | None":
        self._stop_timer(model_id)
        self._keep_alive_s.pop(model_id, None)
        model = self._pool.remove(model_id)
        if model is None:
            return None
        closing = asyncio.create_task(self._close_when_idle(model))
        self._closings[closing] = model
        closing.add_done_callback(lambda done: self._closings.pop(done, None))
        return closing

    async def _close_when_idle(self, model: ResidentModel) -> None:
        await asyncio.sleep(0)  # who waited for its loading holds it now
        while self._is_busy(model):  # noqa: ASYNC110  # the engine has no event for it
            await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(model.close)
        _log.info("%s is unloaded", model.model_id)

    def _is_busy(self, model: ResidentModel) -> bool:
        return bool(model.engine.num_live or self._holders.get(model.model_id))

    async def _unload_later(self, model_id: str) -> None:
        """Wait until nothing used the model for its keep-alive."""
        while (left_s := self.expires_s(model_id) - time.time()) > 0:
            await asyncio.sleep(min(left_s, 3600.0))
            if any(model.model_id == model_id and self._is_busy(model) for model in self._pool.list()):
                self._used_s[model_id] = time.time()
        self._timers.pop(model_id, None)  # else closing would cancel this very task
        self._start_closing(model_id)

    def _stop_timer(self, model_id: str) -> None:
        timer = self._timers.pop(model_id, None)
        if timer is not None:
            timer.cancel()

    def _let_go(self, model_id: str, task: "asyncio.Task[object]") -> None:
        holders = self._holders.get(model_id, set())
        holders.discard(task)
        if not holders:
            self._holders.pop(model_id, None)
        self._used_s[model_id] = time.time()

    def _load_ended(self, model_id: str, task: "asyncio.Task[ResidentModel]") -> None:
        self._loads.pop(model_id, None)
        self._progress.pop(model_id, None)
        if not task.cancelled():
            task.exception()  # whoever asked has it; where all have left nobody misses it
