"""Turns stored tensor bytes into float32. Knows block layouts; knows neither torch nor model names.

Formulas are those of ggml's reference dequantizers, in float32 and in the same order, so results are
bit-equal to them. Temporary memory is bounded by CHUNK_ELEMENTS whatever the tensor's size.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from appliance.errors import UnsupportedModel
from appliance.formats.ggml_types import GGMLType
from appliance.formats.k_quants import read_q2_k, read_q3_k, read_q4_k, read_q5_k, read_q6_k
from appliance.formats.small_quants import (
    read_iq4_nl,
    read_iq4_xs,
    read_mxfp4,
    read_q5_0,
    read_q5_1,
    unpack_nibbles,
)
from appliance.formats.tensor_file import TensorFile

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Half a megabyte of float32: a chunk and its temporaries stay in the second-level cache.
CHUNK_ELEMENTS = 1 << 17

_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", 32)])
_Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])


def dequantize(file: TensorFile, name: str) -> Floats:
    """Return the tensor as float32 in its shape. Raises UnsupportedModel for a type with no reader yet."""
    tensor = file.tensor(name)
    if tensor.type not in _READERS:
        raise _unsupported(tensor.type, f"tensor '{name}'")
    out = np.empty(tensor.shape, dtype=np.float32)
    raw = file.raw(name)
    dequantize_rows(raw, tensor.type, out.reshape(len(raw), -1))
    return out


def dequantize_rows(raw_rows: Bytes, ggml_type: GGMLType, out: Floats) -> None:
    """Fill `out` (rows, elements) from `raw_rows` (rows, row_bytes), both C-contiguous.

    Raises UnsupportedModel for a type with no reader yet, ValueError when the sizes do not agree.
    """
    reader = _READERS.get(ggml_type)
    if reader is None:
        raise _unsupported(ggml_type, "the tensor")
    if not (raw_rows.flags.c_contiguous and out.flags.c_contiguous):
        raise ValueError("raw_rows and out must be C-contiguous")
    if raw_rows.size // ggml_type.block_bytes * ggml_type.block_size != out.size:
        raise ValueError(f"{raw_rows.size} bytes of {ggml_type.name} do not fill {out.size} elements")
    # Rows are whole blocks, so the tensor is one run of blocks.
    raw_blocks = raw_rows.reshape(-1, ggml_type.block_bytes)
    out_blocks = out.reshape(-1, ggml_type.block_size)
    step = max(1, CHUNK_ELEMENTS // ggml_type.block_size)
    # Scales that are no numbers come through as they are, as in the reference.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(out_blocks), step):
            reader(raw_blocks[start : start + step], out_blocks[start : start + step])


def _unsupported(ggml_type: GGMLType, what: str) -> UnsupportedModel:
    readable = ", ".join(readable_type.name for readable_type in _READERS)
    return UnsupportedModel(
        f"{what} has the type {ggml_type.name}, which this version cannot read; get the model as {readable}"
    )


def _read_f32(raw: Bytes, out: Floats) -> None:
    out[...] = raw.view("<f4")


def _read_f16(raw: Bytes, out: Floats) -> None:
    out[...] = raw.view("<f2")


def _read_bf16(raw: Bytes, out: Floats) -> None:
    # bfloat16 is the upper half of a float32.
    np.left_shift(raw.view("<u2"), np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def _read_q8_0(raw: Bytes, out: Floats) -> None:
    """x = d * q."""
    blocks = raw.view(_Q8_0)[:, 0]
    out[...] = blocks["q"]
    out *= blocks["d"].astype(np.float32)[:, None]


def _read_q4_0(raw: Bytes, out: Floats) -> None:
    """x = d * (q - 8)."""
    blocks = raw.view(_Q4_0)[:, 0]
    unpack_nibbles(blocks["q"], out)
    out -= np.float32(8)
    out *= blocks["d"].astype(np.float32)[:, None]


def _read_q4_1(raw: Bytes, out: Floats) -> None:
    """x = d * q + m."""
    blocks = raw.view(_Q4_1)[:, 0]
    unpack_nibbles(blocks["q"], out)
    out *= blocks["d"].astype(np.float32)[:, None]
    out += blocks["m"].astype(np.float32)[:, None]


_READERS: dict[GGMLType, Callable[[Bytes, Floats], None]] = {
    GGMLType.F32: _read_f32,
    GGMLType.F16: _read_f16,
    GGMLType.BF16: _read_bf16,
    GGMLType.Q8_0: _read_q8_0,
    GGMLType.Q4_0: _read_q4_0,
    GGMLType.Q4_1: _read_q4_1,
    GGMLType.Q5_0: read_q5_0,
    GGMLType.Q5_1: read_q5_1,
    GGMLType.Q2_K: read_q2_k,
    GGMLType.Q3_K: read_q3_k,
    GGMLType.Q4_K: read_q4_k,
    GGMLType.Q5_K: read_q5_k,
    GGMLType.Q6_K: read_q6_k,
    GGMLType.IQ4_NL: read_iq4_nl,
    GGMLType.IQ4_XS: read_iq4_xs,
    GGMLType.MXFP4: read_mxfp4,
}
