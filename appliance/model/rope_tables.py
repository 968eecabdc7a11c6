"""Cosines and sines of a step's positions. Knows RopeConfig; knows no device."""

import math

import torch

from appliance.model.config import RopeConfig, RopeScaling


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """Return the (R / 2) float32 angles per position: theta^(-2i / R), scaled."""
    exponents = torch.arange(0, rope.rotary_size, 2, dtype=torch.float64) / rope.rotary_size
    frequencies = 1.0 / rope.theta**exponents
    if rope.frequency_factors is not None:
        frequencies /= torch.tensor(rope.frequency_factors, dtype=torch.float64)
    if rope.scaling is RopeScaling.LINEAR:
        frequencies /= rope.scaling_factor
    elif rope.scaling is RopeScaling.LLAMA3:
        frequencies = _blended(frequencies, rope, _llama3_kept_share(frequencies, rope))
    elif rope.scaling is RopeScaling.YARN:
        frequencies = _blended(frequencies, rope, _yarn_kept_share(rope))
    return frequencies.float()


def yarn_attention_factor(factor: float) -> float:
    """Return what YaRN multiplies cosines and sines by, unless the model says otherwise."""
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


def long_rope_attention_factor(factor: float, original_context_length: int) -> float:
    """Return what LongRoPE multiplies cosines and sines by, unless the model says otherwise."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_context_length))


def rope_tables(
    positions_T: torch.Tensor, frequencies_R2: torch.Tensor, attention_factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of positions x frequencies, (T, R / 2) float32 each."""
    angles_TR2 = positions_T[:, None].float() * frequencies_R2
    return angles_TR2.cos() * attention_factor, angles_TR2.sin() * attention_factor


def _blended(frequencies_R2: torch.Tensor, rope: RopeConfig, kept_R2: torch.Tensor) -> torch.Tensor:
    """Frequencies of which the share `kept` stays, and the rest is divided by the scaling factor."""
    return frequencies_R2 * kept_R2 + frequencies_R2 / rope.scaling_factor * (1 - kept_R2)


def _llama3_kept_share(frequencies_R2: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """What turns `high_frequency` times or more in the original context stays, up to `low_frequency` none."""
    turns_R2 = frequencies_R2 * (rope.original_context_length or 0) / (2 * math.pi)
    return ((turns_R2 - rope.low_frequency) / (rope.high_frequency - rope.low_frequency)).clamp(0, 1)


def _yarn_kept_share(rope: RopeConfig) -> torch.Tensor:
    """A ramp over the index, from what turns `beta_fast` times to what turns `beta_slow` (YaRN, 3.2)."""

    def index_of(turns: float) -> float:
        wavelength = (rope.original_context_length or 0) / (turns * 2 * math.pi)
        return rope.rotary_size * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = index_of(rope.beta_fast), index_of(rope.beta_slow)
    if rope.truncates_range:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_size - 1)
    width = high - low if high != low else 0.001
    ramp_R2 = (torch.arange(rope.rotary_size // 2, dtype=torch.float64) - low) / width
    return 1 - ramp_R2.clamp(0, 1)
