import numpy as np
import pytest

from appliance.formats.dequantize import dequantize_rows
from appliance.formats.ggml_types import GGMLType
from appliance.formats.regroup import affine_groups, as_q8_0
from formats.test_dequantize import random_bytes


def values_of(raw: np.ndarray, ggml_type: GGMLType) -> np.ndarray:
    out = np.full(
        (len(raw), raw.shape[1] // ggml_type.block_bytes * ggml_type.block_size), np.nan, np.float32
    )
    dequantize_rows(raw, ggml_type, out)
    return out


@pytest.mark.parametrize("type_name", ["Q4_K", "Q5_K", "Q5_1"])
def test_affine_groups_hold_the_same_values(type_name: str) -> None:
    ggml_type = GGMLType[type_name]
    raw = random_bytes(type_name, 3, 2 * max(32, ggml_type.block_size))
    groups = affine_groups(raw, ggml_type)
    assert groups is not None
    assert groups.quants.max() < 1 << (4 if type_name == "Q4_K" else 5)
    per_group = groups.quants.reshape(*groups.scales.shape, 32).astype(np.float32)
    restored = per_group * groups.scales[..., None] + groups.minima[..., None]
    assert np.array_equal(restored.reshape(3, -1), values_of(raw, ggml_type))


@pytest.mark.parametrize("type_name", ["Q5_0", "IQ4_NL"])
def test_blocks_of_q8_0_hold_the_same_values(type_name: str) -> None:
    raw = random_bytes(type_name, 3, 96)
    blocks = as_q8_0(raw, GGMLType[type_name])
    assert blocks is not None
    assert np.array_equal(values_of(blocks, GGMLType.Q8_0), values_of(raw, GGMLType[type_name]))


@pytest.mark.parametrize("type_name", ["Q6_K", "Q2_K", "IQ4_XS", "MXFP4", "F16"])
def test_other_types_have_no_exact_form(type_name: str) -> None:
    ggml_type = GGMLType[type_name]
    raw = random_bytes(type_name, 1, 256)
    assert affine_groups(raw, ggml_type) is None
    assert as_q8_0(raw, ggml_type) is None
