import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.dequantize import CHUNK_ELEMENTS, dequantize, dequantize_rows
from appliance.formats.gguf import GGMLType, read_gguf
from formats.gguf_builder import Stored, encode_tensor, write_gguf

WRITABLE = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
# Where each type's float16 scales lie in its block.
SCALES_AT = {
    "F32": (),
    "F16": (),
    "BF16": (),
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
READABLE = list(SCALES_AT)


def random_bytes(type_name: str, num_rows: int, row_length: int) -> np.ndarray:
    """Return rows of blocks with random bits but finite scales."""
    ggml_type = GGMLType[type_name]
    random = np.random.default_rng(num_rows * 1000 + row_length)
    num_blocks = num_rows * row_length // ggml_type.block_size
    raw = random.integers(0, 256, (num_blocks, ggml_type.block_bytes), dtype=np.uint8)
    for offset in SCALES_AT[type_name]:
        scales = random.standard_normal((num_blocks, 1)).astype("<f2")
        raw[:, offset : offset + 2] = scales.view(np.uint8)
    return raw.reshape(num_rows, -1)


@pytest.mark.parametrize("type_name", READABLE)
@pytest.mark.parametrize(("num_rows", "num_units"), [(1, 1), (3, 3), (63, 2), (100, 129)])
def test_rows_are_bit_equal_to_the_reference(type_name: str, num_rows: int, num_units: int) -> None:
    row_length = num_units * max(32, GGMLType[type_name].block_size)
    raw = random_bytes(type_name, num_rows, row_length)
    out = np.full((num_rows, row_length), np.nan, dtype=np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # random bits hold signalling NaNs
        dequantize_rows(raw, GGMLType[type_name], out)
        if type_name == "F32":  # the library wants it as floats already
            expected = raw.view("<f4")
        elif type_name == "F16":
            expected = raw.view("<f2").astype(np.float32)
        else:
            expected = quants.dequantize(raw, GGMLQuantizationType[type_name])
    assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))


def test_a_tensor_comes_back_in_its_shape(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((2, 3, 64))
    tensors = {name: encode_tensor(values, name) for name in WRITABLE}
    file = read_gguf(write_gguf(tmp_path / "m.gguf", {}, tensors))
    tolerance = {"F32": 1e-6, "F16": 2e-3, "BF16": 3e-2, "Q8_0": 2e-2, "Q4_0": 0.3, "Q4_1": 0.3}
    for name in WRITABLE:
        restored = dequantize(file, name)
        assert restored.shape == (2, 3, 64)
        assert restored.dtype == np.float32
        assert np.abs(restored - values).max() < tolerance[name]


@pytest.mark.parametrize("type_name", ["Q4_1", "Q5_0", "Q3_K", "Q6_K", "IQ4_XS", "MXFP4"])
def test_temporary_memory_does_not_grow_with_the_tensor(type_name: str) -> None:
    num_rows, ggml_type = 40 * CHUNK_ELEMENTS // 4096, GGMLType[type_name]
    raw = np.zeros((num_rows, 4096 // ggml_type.block_size * ggml_type.block_bytes), dtype=np.uint8)
    out = np.empty((num_rows, 4096), dtype=np.float32)
    tracemalloc.start()
    dequantize_rows(raw, ggml_type, out)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # At most: the quants before and after a shift, their high bits, a byte each.
    assert peak_bytes < 8 * CHUNK_ELEMENTS < out.nbytes // 15


def test_a_type_with_no_reader_is_unsupported_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"blk.0.w": Stored(int(GGMLType.IQ3_S), (256,), bytes(110))})
    with pytest.raises(UnsupportedModel, match=r"'blk\.0\.w' has the type IQ3_S.*Q8_0"):
        dequantize(read_gguf(path), "blk.0.w")
    with pytest.raises(UnsupportedModel, match="IQ2_XS"):
        dequantize_rows(np.zeros((1, 74), np.uint8), GGMLType.IQ2_XS, np.zeros((1, 256), np.float32))


def test_a_missing_tensor_is_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="'w' is missing"):
        dequantize(read_gguf(write_gguf(tmp_path / "m.gguf", {}, {})), "w")


def test_sizes_that_do_not_agree_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fill"):
        dequantize_rows(np.zeros((2, 34), np.uint8), GGMLType.Q8_0, np.zeros((3, 32), np.float32))
    with pytest.raises(ValueError, match="contiguous"):
        dequantize_rows(np.zeros((2, 34), np.uint8), GGMLType.Q8_0, np.zeros((2, 64), np.float32)[:, ::2])
