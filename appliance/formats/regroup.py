"""The same values in a form that integer kernels take: groups of 32 with one scale, or scale and minimum.

Only where that is exact: whoever packs weights asks here first and requantizes the rest. Knows no kernel.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.formats.ggml_types import GGMLType
from appliance.formats.k_quants import six_bit_groups
from appliance.formats.small_quants import iq4_nl_codes, q5_0_codes, q5_1_groups

GROUP = 32
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineGroups:
    """x = scale * q + minimum, one of each per 32 columns."""

    quants: Bytes  # (rows, columns)
    scales: Floats  # (rows, columns / 32)
    minima: Floats
    num_bits: int  # 4 or 8


def affine_groups(raw: Bytes, ggml_type: GGMLType) -> AffineGroups | None:
    """Rows of a tensor as scale and minimum per group, or None where another form is theirs."""
    rows = len(raw)
    blocks = raw.reshape(-1, ggml_type.block_bytes)
    if ggml_type in (GGMLType.Q4_K, GGMLType.Q5_K):
        quants, scales, minima = six_bit_groups(blocks, has_fifth_bit=ggml_type is GGMLType.Q5_K)
        # The format subtracts its minimum.
        minima = -minima
    elif ggml_type is GGMLType.Q5_1:
        quants, scales, minima = q5_1_groups(blocks)
    else:
        return None
    return AffineGroups(
        quants=np.ascontiguousarray(quants.reshape(rows, -1)),
        scales=np.ascontiguousarray(scales.reshape(rows, -1)),
        minima=np.ascontiguousarray(minima.reshape(rows, -1)),
        num_bits=4 if ggml_type is GGMLType.Q4_K else 8,
    )


def as_q8_0(raw: Bytes, ggml_type: GGMLType) -> Bytes | None:
    """Rows of a tensor as blocks of Q8_0 with the same values, or None where they have no such form."""
    blocks = raw.reshape(-1, ggml_type.block_bytes)
    if ggml_type is GGMLType.Q5_0:
        quants = q5_0_codes(blocks)
    elif ggml_type is GGMLType.IQ4_NL:
        quants = iq4_nl_codes(blocks)
    else:
        return None
    out = np.empty((len(blocks), GGMLType.Q8_0.block_bytes), np.uint8)
    out[:, :2] = blocks[:, :2]  # the scale, float16 in all of them
    out[:, 2:] = quants.view(np.uint8)
    return out.reshape(len(raw), -1)
