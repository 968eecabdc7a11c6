"""Angles per position, scaled as a RopeConfig says. Plain numbers: the native engine serves without torch."""

import math
from array import array
from collections.abc import Sequence

from appliance.model.config import RopeConfig, RopeScaling


def inverse_frequencies(rope: RopeConfig) -> tuple[float, ...]:
    """Return the R / 2 angles per position: theta^(-2i / R), scaled; each is a float32's value."""
    frequencies = [rope.theta ** (-i / rope.rotary_size) for i in range(0, rope.rotary_size, 2)]
    if rope.frequency_factors is not None:
        frequencies = [f / factor for f, factor in zip(frequencies, rope.frequency_factors, strict=True)]
    if rope.scaling is RopeScaling.LINEAR:
        frequencies = [f / rope.scaling_factor for f in frequencies]
    elif rope.scaling is RopeScaling.LLAMA3:
        frequencies = _blended(frequencies, rope, _llama3_kept_share(frequencies, rope))
    elif rope.scaling is RopeScaling.YARN:
        frequencies = _blended(frequencies, rope, _yarn_kept_share(rope))
    return tuple(array("f", frequencies))


def yarn_attention_factor(factor: float) -> float:
    """Return what YaRN multiplies cosines and sines by, unless the model says otherwise."""
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


def long_rope_attention_factor(factor: float, original_context_length: int) -> float:
    """Return what LongRoPE multiplies cosines and sines by, unless the model says otherwise."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_context_length))


def _blended(frequencies: Sequence[float], rope: RopeConfig, kept: Sequence[float]) -> list[float]:
    """Frequencies of which the share `kept` stays, and the rest is divided by the scaling factor."""
    shares = zip(frequencies, kept, strict=True)
    return [f * share + f / rope.scaling_factor * (1 - share) for f, share in shares]


def _llama3_kept_share(frequencies: Sequence[float], rope: RopeConfig) -> list[float]:
    """What turns `high_frequency` times or more in the original context stays, up to `low_frequency` none."""
    width = rope.high_frequency - rope.low_frequency
    turns = (f * (rope.original_context_length or 0) / (2 * math.pi) for f in frequencies)
    return [_between_0_and_1((turn - rope.low_frequency) / width) for turn in turns]


def _yarn_kept_share(rope: RopeConfig) -> list[float]:
    """A ramp over the index, from what turns `beta_fast` times to what turns `beta_slow` (YaRN, 3.2)."""

    def index_of(turns: float) -> float:
        wavelength = (rope.original_context_length or 0) / (turns * 2 * math.pi)
        return rope.rotary_size * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = index_of(rope.beta_fast), index_of(rope.beta_slow)
    if rope.truncates_range:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_size - 1)
    width = high - low if high != low else 0.001
    return [1 - _between_0_and_1((index - low) / width) for index in range(rope.rotary_size // 2)]


def _between_0_and_1(x: float) -> float:
    return min(max(x, 0.0), 1.0)
