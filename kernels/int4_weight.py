"""A matrix in groups of 32 values of 4 bits, laid out for a GPU's tiles. Knows no file."""

from dataclasses import dataclass

import torch

GROUP_SIZE = 32
# Two groups share 32 bytes: the first in the low halves, the second in the high ones. A tile of bytes is then
# two tiles of values, each with one run of x, and no value moves between threads. All channels' bytes of one
# pair lie together: a tile is one run of memory, and so are its scales.
PAIR_SIZE = 2 * GROUP_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Weight:
    """A (O, I) matrix: element = 4 bits (0 to 15) * its group's scale + its group's minimum.

    `packed` uint8 (P, O, 32) of P pairs of groups, `scales` and `minima` float16 (2 P, O); where I is an odd
    number of groups the last has scale and minimum 0. Without `minima` an element is (4 bits - 8) * scale.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    num_inputs: int
    minima: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    activation_dtype: torch.dtype = torch.bfloat16

    @property
    def num_bytes(self) -> int:
        optional = (0 if tensor is None else tensor.nbytes for tensor in (self.minima, self.bias))
        return self.packed.nbytes + self.scales.nbytes + sum(optional)


def pack_int4(
    values_OI: torch.Tensor,
    scales_OG: torch.Tensor,
    minima_OG: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    activation_dtype: torch.dtype = torch.bfloat16,
) -> Int4Weight:
    """Lay out values from 0 to 15 and their groups' float scales and minima, as a file has them.

    I must be a multiple of 32.
    """
    num_outputs, num_inputs = values_OI.shape
    assert num_inputs % GROUP_SIZE == 0
    missing = -num_inputs % PAIR_SIZE
    padded_OI = torch.nn.functional.pad(values_OI.to(torch.uint8), (0, missing))
    pairs_OP2E = padded_OI.view(num_outputs, -1, 2, GROUP_SIZE)
    packed_OPE = pairs_OP2E[:, :, 0] | pairs_OP2E[:, :, 1] << 4
    return Int4Weight(
        packed=packed_OPE.transpose(0, 1).contiguous(),
        scales=_by_group(scales_OG, missing),
        minima=None if minima_OG is None else _by_group(minima_OG, missing),
        num_inputs=num_inputs,
        bias=bias,
        activation_dtype=activation_dtype,
    )


def quantize_int4(
    rows_OI: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation_dtype: torch.dtype = torch.bfloat16,
) -> Int4Weight:
    """Quantize rows of any float type: each group from its least to its largest value in 15 steps."""
    groups_OGE = rows_OI.float().view(len(rows_OI), -1, GROUP_SIZE)
    # Values are counted from the 16-bit minimum in 16-bit steps: what a product will see.
    minima_OG = groups_OGE.amin(-1).half()
    scales_OG = ((groups_OGE.amax(-1) - minima_OG.float()) / 15).half()
    steps_OG1 = scales_OG.float()[..., None]
    counted = torch.where(steps_OG1 > 0, (groups_OGE - minima_OG.float()[..., None]) / steps_OG1, 0)
    values_OI = counted.round().clamp(0, 15).to(torch.uint8).flatten(1)
    return pack_int4(values_OI, scales_OG, minima_OG, bias=bias, activation_dtype=activation_dtype)


def unpack_int4(weight: Int4Weight) -> torch.Tensor:
    """Return the float32 (O, I) matrix that the weight stands for."""
    packed_OPE = weight.packed.transpose(0, 1)
    values_OGE = torch.stack((packed_OPE & 15, packed_OPE >> 4), dim=2).flatten(1, 2).float()
    scales_OG1 = weight.scales.T.float()[..., None]
    if weight.minima is None:
        rows_OGE = (values_OGE - 8) * scales_OG1
    else:
        rows_OGE = values_OGE * scales_OG1 + weight.minima.T.float()[..., None]
    return rows_OGE.flatten(1)[:, : weight.num_inputs].contiguous()


def _by_group(x_OG: torch.Tensor, missing_values: int) -> torch.Tensor:
    return torch.nn.functional.pad(x_OG.half(), (0, missing_values // GROUP_SIZE)).T.contiguous()
