"""A matrix in INT8 with one scale per output channel, and how it is made. Knows no file."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Weight:
    """`weight` int8 (O, I) in [-127, 127], `scales` float32 (O), optional `bias` (O).

    Products take x in `activation_dtype`; `takes_int8_tokens` lets one of many tokens quantize them too: by
    `input_scale` where that is set, else each token by a scale of its own.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None = None
    activation_dtype: torch.dtype = torch.bfloat16
    takes_int8_tokens: bool = False
    input_scale: float | None = None

    @property
    def num_bytes(self) -> int:
        bias_bytes = 0 if self.bias is None else self.bias.nbytes
        return self.weight.nbytes + self.scales.nbytes + bias_bytes


def pack_int8(
    rows_OI: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation_dtype: torch.dtype = torch.bfloat16,
    takes_int8_tokens: bool = False,
) -> Int8Weight:
    """Quantize rows of any float type, symmetric absmax per row; a row of zeros has the scale 0."""
    quantized_OI, scales_O = quantize_rows(rows_OI)
    return Int8Weight(
        weight=quantized_OI,
        scales=scales_O,
        bias=bias,
        activation_dtype=activation_dtype,
        takes_int8_tokens=takes_int8_tokens,
    )


def unpack_int8(weight: Int8Weight) -> torch.Tensor:
    """Return the float32 (O, I) matrix that the weight stands for."""
    return weight.weight.float() * weight.scales[:, None]


def quantize_at(rows: torch.Tensor, scale: float) -> torch.Tensor:
    """Symmetric INT8 like rows by one scale for all; what it does not span becomes the largest step."""
    return (rows.float() / scale).round().clamp(-127, 127).to(torch.int8)


def quantize_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric absmax INT8 over the last axis: (int8 like rows, float32 scales without that axis)."""
    wide = rows.float()
    scales = wide.abs().amax(-1) / 127
    steps = torch.where(scales[..., None] > 0, wide / scales[..., None], 0)
    return steps.round().clamp(-127, 127).to(torch.int8), scales
