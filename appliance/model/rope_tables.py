"""Cosines and sines of a step's positions. Knows RopeConfig; knows no device."""

import torch

from appliance.errors import UnsupportedModel
from appliance.model.config import RopeConfig, RopeScaling


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """Return the (R / 2) float32 angles per position: theta^(-2i / R), scaled.

    Raises UnsupportedModel for a scaling that this version does not compute.
    """
    exponents = torch.arange(0, rope.rotary_size, 2, dtype=torch.float64) / rope.rotary_size
    frequencies = 1.0 / rope.theta**exponents
    if rope.frequency_factors is not None:
        frequencies /= torch.tensor(rope.frequency_factors, dtype=torch.float64)
    if rope.scaling is RopeScaling.LINEAR:
        frequencies /= rope.scaling_factor
    elif rope.scaling is not RopeScaling.NONE:
        raise UnsupportedModel(f"RoPE scaling '{rope.scaling}' is not supported yet")
    return frequencies.float()


def rope_tables(
    positions_T: torch.Tensor, frequencies_R2: torch.Tensor, attention_factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of positions x frequencies, (T, R / 2) float32 each."""
    angles_TR2 = positions_T[:, None].float() * frequencies_R2
    return angles_TR2.cos() * attention_factor, angles_TR2.sin() * attention_factor
