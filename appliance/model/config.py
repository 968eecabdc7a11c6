"""The shape of a network, checked once. Knows no file format and no tensor."""

from dataclasses import dataclass, field
from enum import StrEnum

from appliance.errors import BadModelFile


class Activation(StrEnum):
    """The gate's non-linearity."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


class NormPlacement(StrEnum):
    """Where a block's norms sit: before it, after it, or on both sides."""

    PRE = "pre"
    POST = "post"
    BOTH = "both"


class QKNorm(StrEnum):
    """What of queries and keys is normed before they turn: each head, or all heads of a token at once."""

    NONE = "none"
    HEAD = "head"
    FULL = "full"


class RopeScaling(StrEnum):
    """How frequencies change for long contexts. DYNAMIC changes none up to the context the model was made
    for, which is where a context ends here; LONG_ROPE's factors are in `frequency_factors` already."""

    NONE = "none"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONG_ROPE = "longrope"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding of a layer. `rotary_size` leading elements of a head turn, first half with second.

    `frequency_factors` divide each of the rotary_size / 2 frequencies (LongRoPE, and Llama 3 in GGUF).
    `low_frequency` and `high_frequency` bound what LLAMA3 blends, in turns per original context; `beta_slow`
    and `beta_fast` do so for YARN. `attention_factor` multiplies cosines and sines.
    """

    theta: float
    rotary_size: int
    scaling: RopeScaling = RopeScaling.NONE
    scaling_factor: float = 1.0
    original_context_length: int | None = None
    frequency_factors: tuple[float, ...] | None = None
    attention_factor: float = 1.0
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    beta_slow: float = 1.0
    beta_fast: float = 32.0
    truncates_range: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConfig:
    """A mixture of experts in place of each feed-forward block: the `num_active` most probable of a softmax.

    `normalizes_weights`: the probabilities of the chosen ones are divided by their sum.
    """

    num_experts: int
    num_active: int
    intermediate_size: int
    normalizes_weights: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Every field that an architecture may need. `ropes` and `windows` hold one item per layer.

    A rope of None leaves that layer's positions alone; a window of None attends to everything before.
    Raises BadModelFile where the numbers contradict each other.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    norm_eps: float
    ropes: tuple[RopeConfig | None, ...]
    windows: tuple[int | None, ...] = field(default=())
    attention_scale: float = 0.0  # 0: one over the root of head_size
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    residual_scale: float = 1.0
    embedding_scale: float = 1.0
    qk_norm: QKNorm = QKNorm.NONE
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_feed_forward_bias: bool = False
    norm_placement: NormPlacement = NormPlacement.PRE
    activation: Activation = Activation.SILU
    ties_embeddings: bool = False
    experts: ExpertConfig | None = None

    def __post_init__(self) -> None:
        self._require_positive()
        self._require(self.num_heads % self.num_kv_heads == 0, "num_heads is not a multiple of num_kv_heads")
        self._require(len(self.ropes) == self.num_layers, "there is not one rope per layer")
        self._require(len(self.windows) in (0, self.num_layers), "there is not one window per layer")
        for rope in self.ropes:
            if rope is not None:
                self._check_rope(rope)
        for window in self.windows:
            self._require(window is None or window > 0, f"a window of {window} tokens sees nothing")
        if self.experts is not None:
            self._check_experts(self.experts)

    def _check_experts(self, experts: ExpertConfig) -> None:
        fits = 0 < experts.num_active <= experts.num_experts
        self._require(fits, f"{experts.num_active} of {experts.num_experts} experts cannot be active")
        self._require(experts.intermediate_size > 0, "the experts' intermediate_size must be above 0")
        self._require(not self.has_feed_forward_bias, "experts have no biases")

    def _check_rope(self, rope: RopeConfig) -> None:
        fits = 0 < rope.rotary_size <= self.head_size and rope.rotary_size % 2 == 0
        self._require(fits, f"rotary_size {rope.rotary_size} does not fit head_size {self.head_size}")
        self._require(rope.theta > 0, f"RoPE theta is {rope.theta}; it must be above 0")
        self._require(
            rope.scaling_factor > 0, f"the RoPE scaling factor is {rope.scaling_factor}; it must be above 0"
        )
        if rope.scaling in (RopeScaling.LLAMA3, RopeScaling.YARN):
            original = rope.original_context_length or 0
            self._require(original > 0, f"RoPE scaling '{rope.scaling}' needs an original context above 0")
            blends = rope.low_frequency < rope.high_frequency or rope.scaling is RopeScaling.YARN
            self._require(blends, "RoPE's low_freq_factor is not below its high_freq_factor")
        factors = rope.frequency_factors
        if factors is not None:
            self._require(
                len(factors) == rope.rotary_size // 2,
                f"there are {len(factors)} RoPE frequency factors and a rotary_size of {rope.rotary_size} "
                f"needs {rope.rotary_size // 2}",
            )

    def _require_positive(self) -> None:
        for name in (
            "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_size",
            "vocab_size", "context_length", "norm_eps",
        ):  # fmt: skip
            self._require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be above 0")

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise BadModelFile(f"the model's shape contradicts itself: {problem}")

    @property
    def num_groups(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def query_scale(self) -> float:
        return self.attention_scale or self.head_size**-0.5

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None
