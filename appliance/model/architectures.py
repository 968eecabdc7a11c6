"""Architectures as data: how a file's metadata fills a ModelConfig. Knows GGUF's key names; opens no file."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from appliance.model.config import ModelConfig


class Metadata(Protocol):
    """Typed reads of a model file's metadata; each raises an error naming the key."""

    def metadata_int(self, key: str, default: int | None = None) -> int: ...

    def metadata_float(self, key: str, default: float | None = None) -> float: ...

    def metadata_str(self, key: str, default: str | None = None) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """What the tensors say about the shape where metadata is silent or often missing."""

    vocab_size: int
    ties_embeddings: bool
    has_qkv_bias: bool
    frequency_factors: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One family of networks.

    `permutes_qk`: the file's query and key rows are ordered for pairwise RoPE and must be put back
    into halves.
    """

    name: str
    configure: Callable[[Metadata, TensorFacts], ModelConfig]
    permutes_qk: bool = False
