"""RoPE scaling that a user wants in place of a file's own. Knows no settings and no file."""

from dataclasses import dataclass, replace

from appliance.model.config import ModelConfig, RopeConfig, RopeScaling
from appliance.model.rope_frequencies import yarn_attention_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeOverride:
    """`scaling` is NONE, LINEAR, LLAMA3 or YARN; the context becomes `factor` times the original one.

    `original_context` is what the model was trained with, by default as its file says.
    """

    scaling: RopeScaling
    factor: float = 1.0
    original_context: int | None = None

    def apply(self, config: ModelConfig) -> ModelConfig:
        """Scale every layer that sees the whole context; what a window bounds stays as it is."""
        stated = next((r.original_context_length for r in config.ropes if r is not None), None)
        original = self.original_context or stated or config.context_length
        factor = 1.0 if self.scaling is RopeScaling.NONE else self.factor
        ropes = tuple(
            self._scaled(rope, factor, original) if rope and config.window(layer) is None else rope
            for layer, rope in enumerate(config.ropes)
        )
        return replace(config, ropes=ropes, context_length=int(factor * original))

    def _scaled(self, rope: RopeConfig, factor: float, original: int) -> RopeConfig:
        return RopeConfig(
            theta=rope.theta,
            rotary_size=rope.rotary_size,
            scaling=self.scaling,
            scaling_factor=factor,
            original_context_length=original,
            attention_factor=yarn_attention_factor(factor) if self.scaling is RopeScaling.YARN else 1.0,
        )
