"""AWQ and GPTQ packing, against packers written here from the formats' descriptions, bit by bit."""

import numpy as np
import pytest

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.packed_linear import PackedLinear, packed_format, unpack_linear
from formats.packed_builder import AWQ_ORDER, pack_across, pack_down


def example(
    method: str, num_bits: int, group_size: int, *, num_inputs: int = 128, num_outputs: int = 24,
    act_order: bool = False, form: str = "gptq",
) -> tuple[PackedLinear, np.ndarray]:  # fmt: skip
    """Return a matrix as unpacked, and its values (out, in) by the formula, one by one."""
    rng = np.random.default_rng(num_bits * 1000 + group_size)
    size = num_inputs if group_size == -1 else group_size
    num_groups, top = num_inputs // size, 1 << num_bits
    quants = rng.integers(0, top, (num_inputs, num_outputs))
    zeros = rng.integers(1, top, (num_groups, num_outputs))
    scales = rng.uniform(0.01, 0.1, (num_groups, num_outputs)).astype(np.float16).astype(np.float32)
    groups = np.arange(num_inputs) // size
    if act_order:
        groups = rng.permutation(groups)
    values = np.empty((num_outputs, num_inputs), np.float32)
    for i in range(num_inputs):
        for o in range(num_outputs):
            values[o, i] = scales[groups[i], o] * np.float32(quants[i, o] - zeros[groups[i], o])
    config = {"quant_method": method, "bits": num_bits, "group_size": group_size, "checkpoint_format": form}
    stored_zeros = zeros - 1 if method == "gptq" and form == "gptq" else zeros
    order = AWQ_ORDER if method == "awq" else tuple(range(32 // num_bits))
    qweight = pack_across(quants, num_bits, order) if method == "awq" else pack_down(quants, num_bits)
    linear = unpack_linear(
        packed_format(config), "w", qweight, pack_across(stored_zeros, num_bits, order), scales,
        groups.astype(np.int32) if method == "gptq" else None,
    )  # fmt: skip
    return linear, values


@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
@pytest.mark.parametrize(("method", "num_bits"), [("awq", 4), ("gptq", 4), ("gptq", 8)])
def test_values_are_those_of_the_formula(method: str, num_bits: int, group_size: int) -> None:
    linear, values = example(method, num_bits, group_size)
    assert np.array_equal(linear.dense(), values)
    affine = linear.affine()
    assert affine is not None
    assert affine.num_bits == num_bits
    per_group = affine.quants.reshape(*affine.scales.shape, 32).astype(np.float32)
    restored = per_group * affine.scales[..., None] + affine.minima[..., None]
    assert np.allclose(
        restored.reshape(values.shape), values, rtol=0, atol=2e-6 * np.abs(affine.minima).max()
    )


def test_the_second_gptq_format_stores_zero_points_as_they_are() -> None:
    linear, values = example("gptq", 4, 64, form="gptq_v2")
    assert np.array_equal(linear.dense(), values)


def test_inputs_in_the_order_of_activations_have_no_groups_of_neighbours() -> None:
    linear, values = example("gptq", 4, 32, act_order=True)
    assert np.array_equal(linear.dense(), values)
    assert linear.affine() is None


def test_a_zero_point_above_the_top_stays_so() -> None:
    # 15 stored by the first format means 16.
    for num_bits in (4, 8):
        per_word, top = 32 // num_bits, (1 << num_bits) - 1
        zeros = pack_across(np.full((1, per_word), top), num_bits, tuple(range(per_word)))
        quants = pack_down(np.zeros((per_word, per_word), int), num_bits)
        form = packed_format({"quant_method": "gptq", "bits": num_bits, "group_size": -1})
        scales = np.ones((1, per_word), np.float32)
        assert (unpack_linear(form, "w", quants, zeros, scales, None).dense() == -top - 1).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quantized with 'bitsandbytes'; AWQ and GPTQ"),
        ({}, "quantized with None"),
        ({"quant_method": "awq", "bits": 8}, "awq weights have 8 bits"),
        ({"quant_method": "gptq", "bits": 3}, "gptq weights have 3 bits"),
        ({"quant_method": "gptq", "bits": "4"}, "have '4' bits"),
        ({"quant_method": "awq", "bits": 4, "version": "GEMV"}, "layout is gemv"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 48}, "group size is 48"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group size is 0"),
    ],
)
def test_what_is_not_read_is_refused_by_name(config: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        packed_format(config)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    form = packed_format({"quant_method": "gptq", "bits": 4, "group_size": 32})
    qweight, qzeros = np.zeros((8, 16), np.int32), np.zeros((2, 2), np.int32)
    scales = np.ones((2, 16), np.float32)
    for changed in ((qzeros[:1], scales, None), (qzeros, scales[:, :8], None)):
        with pytest.raises(BadModelFile, match="the matrix 'w' has 64 inputs and 16 outputs in groups of 32"):
            unpack_linear(form, "w", qweight, *changed)
    for g_idx in (np.full(64, 2, np.int32), np.full(64, -1, np.int32), np.zeros(63, np.int32)):
        with pytest.raises(BadModelFile, match="'w' has a g_idx"):
            unpack_linear(form, "w", qweight, qzeros, scales, g_idx)
