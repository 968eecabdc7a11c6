"""AWQ and GPTQ folders: packed matrices under their plain names."""

from pathlib import Path

import numpy as np
import pytest

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.dequantize import dequantize
from appliance.formats.hf_folder import read_hf_folder
from formats.safetensors_builder import write_hf_folder

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
NUM_IN, NUM_OUT = 64, 16


def parts(method: str) -> dict[str, np.ndarray]:
    """A matrix of ones everywhere: scale 0.5, zero point 6, quants 8."""
    rows, columns = (NUM_IN, NUM_OUT // 8) if method == "awq" else (NUM_IN // 8, NUM_OUT)
    stored_zero = 0x66666666 if method == "awq" else 0x55555555
    quants = np.full((rows, columns), -0x77777778, np.int32)  # 0x88888888
    return {
        "a.qweight": quants,
        "a.qzeros": np.full((2, NUM_OUT // 8), stored_zero, np.int32),
        "a.scales": np.full((2, NUM_OUT), 0.5, np.float16),
    }


@pytest.mark.parametrize("config", [AWQ, GPTQ], ids=["awq", "gptq"])
def test_a_packed_matrix_is_listed_and_read_by_its_plain_name(
    tmp_path: Path, config: dict[str, object]
) -> None:
    tensors = parts(str(config["quant_method"])) | {"norm.weight": np.ones(4, np.float32)}
    if config is GPTQ:
        tensors["a.g_idx"] = (np.arange(NUM_IN) // 32).astype(np.int32)
    with read_hf_folder(write_hf_folder(tmp_path, {"quantization_config": config}, tensors)) as folder:
        assert set(folder.tensors) == {"norm.weight", "a.weight"}
        assert folder.tensor("a.weight").shape == (NUM_OUT, NUM_IN)
        assert (dequantize(folder, "a.weight") == 1).all()
        assert folder.raw("a.weight").nbytes == folder.tensor("a.weight").num_bytes
        packed = folder.packed("a.weight")
        assert packed is not None
        assert packed.affine() is not None
        assert folder.packed("norm.weight") is None


@pytest.mark.parametrize("part", ["a.qzeros", "a.scales"])
def test_a_missing_part_is_named(tmp_path: Path, part: str) -> None:
    tensors = {name: array for name, array in parts("awq").items() if name != part}
    with pytest.raises(BadModelFile, match=f"the tensor '{part}' is missing"):
        read_hf_folder(write_hf_folder(tmp_path, {"quantization_config": AWQ}, tensors))


def test_a_part_of_another_type_is_named(tmp_path: Path) -> None:
    tensors = parts("awq") | {"a.qweight": np.ones((4, 4), np.float32)}
    with pytest.raises(BadModelFile, match=r"'a\.qweight' is F32 \(4, 4\) and must be I32"):
        read_hf_folder(write_hf_folder(tmp_path, {"quantization_config": AWQ}, tensors))


def test_another_quantization_is_unsupported_by_name(tmp_path: Path) -> None:
    config = {"quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(UnsupportedModel, match="quantized with 'fp8'"):
        read_hf_folder(write_hf_folder(tmp_path, config, parts("awq")))
