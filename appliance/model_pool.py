"""Which models are resident, one engine each. The only owner of that decision. Loads no torch itself."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.engine.engine import Engine
from appliance.errors import UnknownModel
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """What holds where a client asks for nothing else."""

    system: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # JSON, in the names of Ollama's options
    messages: tuple[Mapping[str, Any], ...] = ()  # JSON: said before every conversation


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


class ModelPool:
    """Holds one resident model for now; every lookup by name goes through it."""

    def __init__(self) -> None:
        self._models: dict[str, ResidentModel] = {}
        self._lock = threading.Lock()

    def add(self, model: ResidentModel) -> None:
        with self._lock:
            self._models[model.model_id] = model

    def remove(self, model_id: str) -> ResidentModel | None:
        """Let no new request find it; the caller closes it. None where it is not resident."""
        with self._lock:
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

    def close(self) -> None:
        """Stop every engine and free its memory."""
        with self._lock:
            models, self._models = list(self._models.values()), {}
        for model in models:
            model.close()
