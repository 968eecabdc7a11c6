"""Which models are resident, one engine each, and what memory they may still take. Loads no torch itself."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance.engine.engine import Engine
from appliance.errors import UnknownModel
from appliance.matrix_losses import LayerLoss
from appliance.observe.prompt_log import PromptLog
from appliance.quality import Quality
from appliance.text.chat_template import ChatTemplate
from appliance.text.constraints import ConstraintCompiler
from appliance.text.purpose import WRITING, Purpose
from appliance.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a loaded model, for listings and the dashboard."""

    architecture: str
    num_parameters: int
    context_length: int
    precision: str
    kv_dtype: str
    weights_bytes: int
    kv_pool_bytes: int
    backend: str
    device: str
    num_threads: int
    purpose: Purpose = WRITING
    quality: Quality | None = None  # as last measured
    layer_losses: tuple[LayerLoss, ...] = ()  # as last calibrated


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """What holds where a client asks for nothing else."""

    system: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # JSON, in the names of Ollama's options
    messages: tuple[Mapping[str, Any], ...] = ()  # JSON: said before every conversation
    # Of the options, those that this machine's user settled: they hold for every protocol.
    settled: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentModel:
    """A model that answers: its engine, its text side, and what is known of it."""

    model_id: str
    created: int  # Unix seconds, for the clients' listings
    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    constraints: ConstraintCompiler
    facts: ModelFacts
    close: Callable[[], None]
    defaults: ModelDefaults = ModelDefaults()
    prompt_log: PromptLog | None = None  # where the operator has prompts recorded

    def note_prompt(self, token_ids: Sequence[int]) -> None:
        if self.prompt_log is not None:
            self.prompt_log.add(token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a model that is to be loaded must leave to others.

    Memory that is promised is not taken yet, so the system calls it free: KV pages that other models have
    not touched, and the weights of those that are to come. `num_sharing` models, this one among them, then
    have equal shares of the rest for their KV pools.
    """

    promised_bytes: int = 0
    num_sharing: int = 1


ALL_ROOM = Room()


class ModelPool:
    """Holds the resident models; every lookup by name goes through it. Pinned ones stay until told to go."""

    def __init__(self) -> None:
        self._models: dict[str, ResidentModel] = {}
        self._pinned: set[str] = set()
        self._lock = threading.Lock()

    def add(self, model: ResidentModel, *, is_pinned: bool = False) -> None:
        with self._lock:
            self._models[model.model_id] = model
            if is_pinned:
                self._pinned.add(model.model_id)

    def is_pinned(self, model_id: str) -> bool:
        with self._lock:
            return model_id in self._pinned

    def remove(self, model_id: str) -> ResidentModel | None:
        """Let no new request find it; the caller closes it. None where it is not resident."""
        with self._lock:
            self._pinned.discard(model_id)
            return self._models.pop(model_id, None)

    def get(self, name: str) -> ResidentModel:
        """Return the resident model of that id. Raises UnknownModel with the resident ids as remedy."""
        with self._lock:
            model = self._models.get(name)
            if model is None:
                raise UnknownModel(name, nearest=tuple(self._models))
            return model

    def list(self) -> tuple[ResidentModel, ...]:
        with self._lock:
            return tuple(self._models.values())

    def untouched_bytes(self) -> int:
        """KV memory that resident models were promised and hold nothing in yet."""
        return sum(map(untouched_bytes, self.list()))

    def close(self) -> None:
        """Stop every engine and free its memory."""
        with self._lock:
            models, self._models = list(self._models.values()), {}
        for model in models:
            model.close()


def untouched_bytes(model: ResidentModel) -> int:
    """Of its KV pool, as far as the engine knows: a page that was freed may have been touched before."""
    engine = model.engine.snapshot()
    return model.facts.kv_pool_bytes * engine.num_free_blocks // max(1, engine.num_blocks)
