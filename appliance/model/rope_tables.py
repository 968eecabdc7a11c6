"""Cosines and sines of a step's positions. Knows no device."""

import torch


def rope_tables(
    positions_T: torch.Tensor, frequencies_R2: torch.Tensor, attention_factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of positions x frequencies, (T, R / 2) float32 each."""
    angles_TR2 = positions_T[:, None].float() * frequencies_R2
    return angles_TR2.cos() * attention_factor, angles_TR2.sin() * attention_factor
