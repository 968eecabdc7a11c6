"""What the appliance is doing: its phase, its models, its limits. Knows no HTTP.

The loader's thread moves the phase; the event loop reads it. Generations belong to the event loop alone.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from appliance.config import Settings
from appliance.derived_models import DerivedModel, canonical_name
from appliance.errors import NotInstalled, NotReady, UnknownModel
from appliance.log_ring import LogRing
from appliance.model_library import ModelLibrary
from appliance.model_pool import ModelDefaults, ModelPool, ResidentModel
from appliance.observe.latency import LatencyRecorder
from appliance.observe.request_context import Stage, timed
from appliance.server.residency import Loader, Residency, ResidencyRules
from appliance.server.schemas import Phase
from appliance.text.chat_template import ChatTemplate

_LONGEST_NAME_ECHOED = 100  # characters of an unknown model's name in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What one client may ask of the server."""

    deadline_s: float = 600.0  # longest wait in the engine's queue
    max_body_bytes: int = 32 * 2**20
    body_timeout_s: float = 30.0  # longest silence while a body is sent
    ping_interval_s: float = 5.0  # a comment goes out where nothing else did
    stall_timeout_s: float = 120.0  # a client that takes nothing for so long is cut off
    max_choices: int = 128  # prompts times n

    @classmethod
    def from_settings(cls, settings: Settings) -> "ServerLimits":
        return cls(deadline_s=settings.deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStatus:
    """Where start-up or shutdown stands. `progress` runs from 0 to 1 within the phase where it is known."""

    phase: Phase
    detail: str = ""
    progress: float | None = None

    @property
    def is_ready(self) -> bool:
        return self.phase == "ready"


class Cancellable(Protocol):
    """Work under way for a client."""

    def cancel(self) -> None: ...


class ApplianceState:
    """The one place where the loader, the server and the shutdown meet."""

    def __init__(
        self,
        *,
        pool: ModelPool,
        limits: ServerLimits | None = None,
        latency: LatencyRecorder | None = None,
        library: ModelLibrary | None = None,
        loader: Loader | None = None,
        residency: ResidencyRules | None = None,
        log_ring: LogRing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.limits = limits or ServerLimits()
        self.latency = latency or LatencyRecorder()
        self.library = library
        self.log_ring = log_ring
        self.residency = Residency(pool, loader, residency or ResidencyRules())
        self._clock = clock
        self._started_s = clock()
        self._lock = threading.Lock()
        self._status = PhaseStatus(phase="starting")
        self._generations: set[Cancellable] = set()

    @property
    def status(self) -> PhaseStatus:
        """The phase. Ready is what it is no more once a model's engine broke, its device lost."""
        with self._lock:
            status = self._status
        breakage = self._breakage() if status.is_ready else None
        return status if breakage is None else PhaseStatus(phase="failed", detail=breakage)

    def _breakage(self) -> str | None:
        return next((b for model in self.pool.list() if (b := model.engine.breakage) is not None), None)

    @property
    def uptime_s(self) -> float:
        return self._clock() - self._started_s

    @property
    def is_closing(self) -> bool:
        return self.status.phase == "draining"

    def enter(self, phase: Phase, detail: str = "", *, progress: float | None = None) -> None:
        """Move to a phase, or report progress within it. Any thread. Nothing follows draining."""
        with self._lock:
            if self._status.phase == "draining" and phase != "draining":
                return
            self._status = PhaseStatus(phase=phase, detail=detail, progress=progress)

    def require_ready(self) -> None:
        """Raise NotReady with the phase unless requests can be answered now."""
        status = self.status
        if status.phase == "failed":
            raise NotReady(f"the appliance cannot answer until it is started again: {status.detail}")
        if not status.is_ready:
            detail = f" ({status.detail})" if status.detail else ""
            raise NotReady(f"the appliance is {status.phase}{detail}; try again when GET /health answers 200")

    def model_for(self, name: str | None) -> ResidentModel:
        """Return the model of that id; the first resident one where no name is given.

        Raises NotReady, UnknownModel.
        """
        self.require_ready()
        if name:
            return self.resident_model(name)
        model = self.first_model()
        if model is None:
            raise NotReady("no model is loaded; name one in the request, and it is loaded")
        self.residency.hold(model)
        return model

    def resident_model(self, name: str) -> ResidentModel:
        """Return the resident model of that id, alias or derived name.

        Raises UnknownModel, which echoes some of the name.
        """
        is_long = len(name) > _LONGEST_NAME_ECHOED
        name = name[:_LONGEST_NAME_ECHOED] + "..." if is_long else name
        try:
            model = self.pool.get(name)
        except UnknownModel:
            model = self._resident_by_other_name(name)
        self.residency.hold(model)
        return model

    async def loaded_model(self, name: str | None) -> ResidentModel:
        """As `model_for`, but load it first where that is needed and possible."""
        if not name:
            return self.model_for(None)
        self.require_ready()
        try:
            return self.resident_model(name)
        except UnknownModel:
            if self.library is None:
                raise
        try:
            found = await asyncio.to_thread(self.library.find, name)
        except NotInstalled:
            raise
        except UnknownModel as error:
            raise self._unknown_beside_resident(error) from error
        with timed(Stage.LOAD):
            model = await self.residency.load(found)
        return self._as_named(model, name)

    def _resident_by_other_name(self, name: str) -> ResidentModel:
        canonical = canonical_name(name)
        for model in self.pool.list():
            if canonical_name(model.model_id) == canonical:
                return model
        try:
            base_id = self.library.base_id(name) if self.library else name
        except UnknownModel as error:
            raise self._unknown_beside_resident(error) from error
        return self._as_named(self.pool.get(base_id), name)

    def _unknown_beside_resident(self, error: UnknownModel) -> UnknownModel:
        """The same error with what is loaded among the suggestions."""
        resident = tuple(model.model_id for model in self.pool.list())
        return UnknownModel(error.name, nearest=(*resident, *error.nearest)[:3])

    def _as_named(self, model: ResidentModel, name: str) -> ResidentModel:
        derived = self.library.derived(name) if self.library else None
        return _derived(model, derived) if derived else model

    def first_model(self) -> ResidentModel | None:
        models = self.pool.list()
        return models[0] if models else None

    def generation_started(self, generation: Cancellable) -> None:
        self._generations.add(generation)

    def generation_ended(self, generation: Cancellable) -> None:
        self._generations.discard(generation)

    @property
    def num_generations(self) -> int:
        return len(self._generations)

    def cancel_generations(self) -> None:
        """End every answer under way; their clients get an error event. Event loop only."""
        for generation in tuple(self._generations):
            generation.cancel()


def _derived(model: ResidentModel, derived: DerivedModel) -> ResidentModel:
    """The same engine and tokenizer with the derived model's own words. Raises UnsupportedModel."""
    template = model.chat_template
    if derived.template is not None:
        template = ChatTemplate(derived.template, model.tokenizer.bos_token, model.tokenizer.eos_token)
    defaults = ModelDefaults(
        system=derived.system if derived.system is not None else model.defaults.system,
        options={**model.defaults.options, **derived.parameters},
        settled={**model.defaults.settled, **derived.parameters},
        messages=tuple(derived.messages) or model.defaults.messages,
    )
    return replace(model, chat_template=template, defaults=defaults)
