"""Blocks of 256 elements with scales of their own per 16 or 32 (the K types) to float32. Knows no file.

In float32 and in the order of ggml's reference dequantizers, so results are bit-equal to them.
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_Q2 = np.dtype([("scales", "u1", 16), ("q", "u1", (2, 1, 32)), ("d", "<f2"), ("m", "<f2")])
_Q3 = np.dtype([("high", "u1", (1, 32)), ("q", "u1", (2, 1, 32)), ("scales", "u1", 12), ("d", "<f2")])
_Q4 = np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", (3, 4)), ("q", "u1", (4, 1, 32))])
_Q5 = np.dtype(
    [("d", "<f2"), ("m", "<f2"), ("scales", "u1", (3, 4)), ("high", "u1", (1, 32)), ("q", "u1", (4, 1, 32))]
)
_Q6 = np.dtype([("q", "u1", (2, 1, 64)), ("high", "u1", (2, 1, 32)), ("scales", "i1", 16), ("d", "<f2")])

_PAIRS = np.array([0, 4], dtype=np.uint8)[:, None]
_QUARTERS = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
_BITS = np.arange(8, dtype=np.uint8)[:, None]


def read_q2_k(raw: Bytes, out: Floats) -> None:
    """x = (d * scale) * q - (m * minimum), per 16; scale and minimum have 4 bits, q has 2."""
    blocks = raw.view(_Q2)[:, 0]
    scales = blocks["scales"]
    low = (blocks["q"] >> _QUARTERS) & np.uint8(3)
    _fill(
        out,
        low,
        _times(blocks["d"], scales & np.uint8(15)),
        minimum=_times(blocks["m"], scales >> np.uint8(4)),
    )


def read_q3_k(raw: Bytes, out: Floats) -> None:
    """x = (d * (scale - 32)) * (q - 4), per 16; the third bit of q lies apart, and so do two of the scale."""
    blocks = raw.view(_Q3)[:, 0]
    packed = blocks["scales"]
    low = (packed[:, None, :8] >> _PAIRS).reshape(-1, 16) & np.uint8(15)
    high = (packed[:, None, 8:] >> _QUARTERS).reshape(-1, 16) & np.uint8(3)
    scales = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    quants = ((blocks["q"] >> _QUARTERS) & np.uint8(3)).reshape(-1, 256)
    quants |= ((blocks["high"] >> _BITS) & np.uint8(1)).reshape(-1, 256) << np.uint8(2)
    _fill(out, quants.view(np.int8) - np.int8(4), _times(blocks["d"], scales))


def read_q4_k(raw: Bytes, out: Floats) -> None:
    """x = (d * scale) * q - (m * minimum), per 32; scale and minimum have 6 bits, q has 4."""
    quants, scales, minima = six_bit_groups(raw, has_fifth_bit=False)
    _fill(out, quants, scales, minimum=minima)


def read_q5_k(raw: Bytes, out: Floats) -> None:
    """As Q4_K, with a fifth bit of q that lies apart."""
    quants, scales, minima = six_bit_groups(raw, has_fifth_bit=True)
    _fill(out, quants, scales, minimum=minima)


def six_bit_groups(raw: Bytes, *, has_fifth_bit: bool) -> tuple[Bytes, Floats, Floats]:
    """Return quants (blocks, 256), and the scales and minima (blocks, 8) of Q4_K or Q5_K blocks."""
    blocks = raw.view(_Q5 if has_fifth_bit else _Q4)[:, 0]
    quants = ((blocks["q"] >> _PAIRS) & np.uint8(15)).reshape(-1, 256)
    if has_fifth_bit:
        quants |= ((blocks["high"] >> _BITS) & np.uint8(1)).reshape(-1, 256) << np.uint8(4)
    scales, minima = _six_bit_scales(blocks["scales"])
    return quants, _times(blocks["d"], scales), _times(blocks["m"], minima)


def read_q6_k(raw: Bytes, out: Floats) -> None:
    """x = (d * scale) * (q - 32), per 16; the scale is a signed byte, two bits of q lie apart."""
    blocks = raw.view(_Q6)[:, 0]
    quants = ((blocks["q"] >> _PAIRS) & np.uint8(15)).reshape(-1, 256)
    quants |= ((blocks["high"] >> _QUARTERS) & np.uint8(3)).reshape(-1, 256) << np.uint8(4)
    _fill(out, quants.view(np.int8) - np.int8(32), _times(blocks["d"], blocks["scales"]))


def _six_bit_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return the 8 scales and 8 minima in 12 bytes (blocks, 3, 4).

    The first four of each lie in the lower six bits of rows 0 and 1; of the others the lower four bits lie in
    row 2 and the upper two on top of rows 0 and 1.
    """
    scales, minima, low = packed[:, 0], packed[:, 1], packed[:, 2]
    six, top = np.uint8(0x3F), np.uint8(0x30)
    later_scales = (low & np.uint8(15)) | ((scales >> np.uint8(2)) & top)
    later_minima = (low >> np.uint8(4)) | ((minima >> np.uint8(2)) & top)
    return (
        np.concatenate((scales & six, later_scales), axis=1),
        np.concatenate((minima & six, later_minima), axis=1),
    )


def _times(factor: "NDArray[np.float16]", items: "NDArray[np.integer]") -> Floats:
    return factor.astype(np.float32)[:, None] * items.astype(np.float32)


def _fill(
    out: Floats, quants: "NDArray[np.integer]", scale: Floats, *, minimum: Floats | None = None
) -> None:
    """Write scale * q, less the minimum, one of each per group."""
    groups = out.reshape(len(out), scale.shape[1], -1)
    np.multiply(quants.reshape(groups.shape), scale[:, :, None], out=groups, dtype=np.float32)
    if minimum is not None:
        groups -= minimum[:, :, None]
