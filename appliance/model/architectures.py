"""What an architecture is: data that fills a ModelConfig and names its tensors. Opens no file."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from appliance.model.config import ModelConfig
from appliance.model.hf_config import HFConfig
from appliance.model.tensor_names import GGUF_NAMES, HF_NAMES, TensorNames


class Metadata(Protocol):
    """Typed reads of a GGUF file's metadata; each raises an error naming the key."""

    def metadata_int(self, key: str, default: int | None = None) -> int: ...

    def metadata_float(self, key: str, default: float | None = None) -> float: ...

    def metadata_bool(self, key: str, default: bool | None = None) -> bool: ...

    def metadata_str(self, key: str, default: str | None = None) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """What the tensors say about the shape where metadata is silent or often missing.

    `vectors` are those that hold RoPE factors, by name. `served_context` is the longest context that will be
    asked for, None for all that the model allows: LongRoPE has other factors for long ones.
    """

    vocab_size: int
    names: Collection[str]
    vectors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    served_context: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One family of networks.

    `name` is GGUF's, `model_types` are those of config.json. `gguf_permutes_qk`: query and key rows of a GGUF
    file are ordered for pairwise RoPE and must be put back into halves. `hf_norms_add_one`: safetensors hold
    norm weights less one.
    """

    name: str
    model_types: tuple[str, ...]
    from_gguf: Callable[[Metadata, TensorFacts], ModelConfig]
    from_hf: Callable[[HFConfig, TensorFacts], ModelConfig]
    gguf_names: TensorNames = field(default_factory=lambda: GGUF_NAMES)
    hf_names: TensorNames = field(default_factory=lambda: HF_NAMES)
    gguf_permutes_qk: bool = False
    hf_norms_add_one: bool = False
