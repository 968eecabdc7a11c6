"""Blocks of 5-bit integers and of 4-bit codes into a table of values, to float32. Knows no file.

In float32 and in the order of ggml's reference dequantizers, so results are bit-equal to them.
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_Q5_0 = np.dtype([("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
_Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
_IQ4_NL = np.dtype([("d", "<f2"), ("q", "u1", 16)])
_IQ4_XS = np.dtype([("d", "<f2"), ("high", "<u2"), ("low", "u1", 4), ("q", "u1", (8, 16))])
_MXFP4 = np.dtype([("exponent", "u1"), ("q", "u1", 16)])

# The 16 values of the non-linear 4-bit types, and of a 4-bit float times two.
_NON_LINEAR = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
_FLOAT4_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
_PAIRS = np.array([0, 4], dtype=np.uint8)
_EVEN_BITS = np.arange(0, 16, 2, dtype=np.uint16)


def unpack_nibbles(packed: Bytes, out: "NDArray[np.generic]") -> None:
    """Write the low nibbles to the first half of each block and the high ones to the second."""
    half = packed.shape[-1]
    out[..., :half] = packed & np.uint8(15)
    out[..., half:] = packed >> np.uint8(4)


def q5_0_codes(raw: Bytes) -> NDArray[np.int8]:
    """Return the signed quants (blocks, 32) of Q5_0 blocks."""
    return _five_bits(raw.view(_Q5_0)[:, 0]).view(np.int8) - np.int8(16)


def q5_1_groups(raw: Bytes) -> tuple[Bytes, Floats, Floats]:
    """Return quants (blocks, 32), and the scale and minimum (blocks, 1) of Q5_1 blocks."""
    blocks = raw.view(_Q5_1)[:, 0]
    scales, minima = (blocks[field].astype(np.float32)[:, None] for field in ("d", "m"))
    return _five_bits(blocks), scales, minima


def iq4_nl_codes(raw: Bytes) -> NDArray[np.int8]:
    """Return the values (blocks, 32) that IQ4_NL blocks multiply with their scale."""
    codes = np.empty((len(raw), 32), np.float32)
    _look_up(_NON_LINEAR, raw.view(_IQ4_NL)[:, 0]["q"], codes)
    return codes.astype(np.int8)


def _five_bits(blocks: "NDArray[np.void]") -> Bytes:
    """Return the quants (blocks, 32) whose fifth bits lie apart."""
    quants = np.empty((len(blocks), 32), np.uint8)
    unpack_nibbles(blocks["q"], quants)
    quants |= np.unpackbits(blocks["high"], axis=1, bitorder="little") << np.uint8(4)
    return quants


def read_q5_0(raw: Bytes, out: Floats) -> None:
    """x = d * (q - 16)."""
    blocks = raw.view(_Q5_0)[:, 0]
    out[...] = _five_bits(blocks)
    out -= np.float32(16)
    out *= blocks["d"].astype(np.float32)[:, None]


def read_q5_1(raw: Bytes, out: Floats) -> None:
    """x = d * q + m."""
    blocks = raw.view(_Q5_1)[:, 0]
    out[...] = _five_bits(blocks)
    out *= blocks["d"].astype(np.float32)[:, None]
    out += blocks["m"].astype(np.float32)[:, None]


def read_iq4_nl(raw: Bytes, out: Floats) -> None:
    """x = d * table[q]."""
    blocks = raw.view(_IQ4_NL)[:, 0]
    _look_up(_NON_LINEAR, blocks["q"], out)
    out *= blocks["d"].astype(np.float32)[:, None]


def read_iq4_xs(raw: Bytes, out: Floats) -> None:
    """x = (d * (scale - 32)) * table[q], per 32; of the scale's six bits two lie apart."""
    blocks = raw.view(_IQ4_XS)[:, 0]
    low = (blocks["low"][:, :, None] >> _PAIRS).reshape(-1, 8) & np.uint8(15)
    high = (blocks["high"][:, None] >> _EVEN_BITS).astype(np.uint8) & np.uint8(3)
    scales = (low | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    scales *= blocks["d"].astype(np.float32)[:, None]
    groups = out.reshape(-1, 8, 32)
    _look_up(_NON_LINEAR, blocks["q"], groups)
    groups *= scales[:, :, None]


def read_mxfp4(raw: Bytes, out: Floats) -> None:
    """x = 2 ** (exponent - 128) * table[q]: the table holds twice the values of a 4-bit float."""
    blocks = raw.view(_MXFP4)[:, 0]
    _look_up(_FLOAT4_TWICE, blocks["q"], out)
    # Exactly a power of two, subnormal ones included.
    out *= np.ldexp(np.float32(1), blocks["exponent"].astype(np.int32) - 128)[:, None]


def _look_up(table: Floats, packed: Bytes, out: Floats) -> None:
    half = packed.shape[-1]
    np.take(table, packed & np.uint8(15), out=out[..., :half], mode="clip")
    np.take(table, packed >> np.uint8(4), out=out[..., half:], mode="clip")
