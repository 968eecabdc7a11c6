"""Packed matrices against float64 products, at odd sizes, on every level of this machine."""

import numpy as np
import pytest

from kernels.cpu.abi import MIXED_BITS, Kind, Source
from kernels.cpu.library import NativeError, NativeLibrary
from kernels.cpu.ops import NativeLinear

# INT8 activations round by up to half a 127th of their group's peak.
ACTIVATION_ERROR = 0.012
SIZES = [(1, 32, 1), (63, 96, 5), (64, 64, 7), (100, 160, 13), (193, 576, 2)]


def run_all_levels(library, linear, x, values, limit, bias=0.0, activation_bits=8):
    """The error is relative to the length of row times column, which no cancellation makes small."""
    expected = x @ values.astype(np.float64).T + bias
    lengths = np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(values, axis=1)) + np.abs(bias)
    for level in library.levels:
        out = np.full((len(x), linear.num_outputs), np.nan, np.float32)
        linear.run(x, out, level, activation_bits)
        assert (np.abs(out - expected) / lengths).mean() < limit, level


@pytest.mark.parametrize("source", [Source.Q4_0, Source.Q4_1, Source.Q8_0])
@pytest.mark.parametrize(("outputs", "inputs", "rows"), SIZES)
def test_file_blocks_are_multiplied_as_they_are(library: NativeLibrary, rig, source, outputs, inputs, rows):
    rng = np.random.default_rng(outputs)
    blocks, values = rig.blocks(rng, source, outputs, inputs)
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    with NativeLinear(library, blocks, source) as linear:
        for index in {0, outputs // 2, outputs - 1}:
            assert np.allclose(linear.row(index), values[index], rtol=1e-6, atol=0)
        run_all_levels(library, linear, x, values, ACTIVATION_ERROR)


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        (Kind.F32, 1e-5),
        (Kind.BF16, 4e-3),
        (Kind.CHANNEL8, 0.02),
        (Kind.GROUP8, 0.02),
        (Kind.GROUP4, 0.12),
        (Kind.GROUP4_MIN, 0.12),
    ],
)
@pytest.mark.parametrize(("outputs", "inputs", "rows"), [(1, 1, 1), (65, 33, 4), (100, 100, 9), (31, 576, 3)])
def test_float_rows_are_packed_to_any_kind(library: NativeLibrary, kind, limit, outputs, inputs, rows):
    rng = np.random.default_rng(inputs)
    weight = rng.normal(size=(outputs, inputs)).astype(np.float32)
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    with NativeLinear(library, weight, Source.F32, kind=kind) as linear:
        run_all_levels(library, linear, x, weight, limit)


@pytest.mark.parametrize("kind", [Kind.AFFINE8, Kind.AFFINE4])
def test_affine_quants_keep_their_float32_scales(library: NativeLibrary, kind):
    rng = np.random.default_rng(3)
    quants = rng.integers(0, 256 if kind is Kind.AFFINE8 else 16, (77, 96), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.02, (77, 3)).astype(np.float32)
    minima = -scales * quants.max() / 2
    values = (quants.reshape(77, 3, 32) * scales[..., None] + minima[..., None]).reshape(77, 96)
    x = rng.normal(size=(5, 96)).astype(np.float32)
    with NativeLinear(library, quants, Source.AFFINE, kind=kind, scales=scales, minima=minima) as linear:
        assert np.allclose(linear.row(76), values[76], rtol=1e-6, atol=1e-6)
        run_all_levels(library, linear, x, values, ACTIVATION_ERROR)


def test_half_precision_rows_match_their_float32_values(library: NativeLibrary):
    weight = np.random.default_rng(4).normal(size=(40, 64)).astype(np.float16)
    weight[0, :4] = [6e-8, -6e-5, 0.0, 65504.0]
    with NativeLinear(library, weight, Source.F16, kind=Kind.F32) as linear:
        assert all((linear.row(i) == weight[i].astype(np.float32)).all() for i in range(40))


def test_order_and_bias_are_applied(library: NativeLibrary):
    rng = np.random.default_rng(5)
    weight, bias = rng.normal(size=(70, 64)).astype(np.float32), rng.normal(size=70).astype(np.float32)
    order = rng.permutation(70).astype(np.int32)
    x = rng.normal(size=(3, 64)).astype(np.float32)
    with NativeLinear(library, weight, Source.F32, kind=Kind.F32, order=order, bias=bias) as linear:
        run_all_levels(library, linear, x, weight[order], 1e-5, bias)


@pytest.mark.parametrize("source", [Source.Q4_0, Source.Q4_1, Source.Q8_0])
@pytest.mark.parametrize("activation_bits", [8, 12, MIXED_BITS])
def test_a_row_does_not_depend_on_its_neighbours(library: NativeLibrary, rig, source, activation_bits):
    rng = np.random.default_rng(6)
    blocks, _ = rig.blocks(rng, source, 130, 224)
    x = rng.normal(size=(37, 224)).astype(np.float32) * rng.lognormal(0, 1, (37, 224)).astype(np.float32)
    with NativeLinear(library, blocks, source) as linear:
        for level in library.levels:
            alone = np.full((37, 130), np.nan, np.float32)
            for i in range(37):
                linear.run(x[i : i + 1], alone[i : i + 1], level, activation_bits)
            for first, end in ((0, 37), (3, 8), (5, 17), (0, 9), (1, 34)):
                together = np.full((end - first, 130), np.nan, np.float32)
                linear.run(x[first:end], together, level, activation_bits)
                assert (together == alone[first:end]).all(), (level, first, end)


@pytest.mark.parametrize("kind", [Kind.AFFINE8, Kind.AFFINE4])
@pytest.mark.parametrize("activation_bits", [8, 12])
def test_a_row_of_affine_weights_does_not_depend_on_its_neighbours(
    library: NativeLibrary, kind, activation_bits
):
    rng = np.random.default_rng(9)
    quants = rng.integers(0, 256 if kind is Kind.AFFINE8 else 16, (70, 320), dtype=np.uint8)
    scales, minima = rng.normal(size=(2, 70, 10)).astype(np.float32)
    x = rng.normal(size=(33, 320)).astype(np.float32)
    with NativeLinear(library, quants, Source.AFFINE, kind=kind, scales=scales, minima=minima) as linear:
        for level in library.levels:
            together, alone = (np.full((33, 70), np.nan, np.float32) for _ in range(2))
            linear.run(x, together, level, activation_bits)
            for i in range(33):
                linear.run(x[i : i + 1], alone[i : i + 1], level, activation_bits)
            assert (together == alone).all(), level


@pytest.mark.parametrize(
    ("kind", "activation_bits"), [(Kind.BF16, 8), (Kind.CHANNEL8, 8), (Kind.CHANNEL8, 12), (Kind.F32, 8)]
)
def test_a_row_of_whole_channels_does_not_depend_on_its_neighbours(
    library: NativeLibrary, kind, activation_bits
):
    rng = np.random.default_rng(8)
    weight = rng.normal(size=(70, 100)).astype(np.float32)
    x = rng.normal(size=(21, 100)).astype(np.float32)
    with NativeLinear(library, weight, Source.F32, kind=kind) as linear:
        for level in library.levels:
            together, alone = (np.full((21, 70), np.nan, np.float32) for _ in range(2))
            linear.run(x, together, level, activation_bits)
            for i in range(21):
                linear.run(x[i : i + 1], alone[i : i + 1], level, activation_bits)
            assert (together == alone).all(), level


def test_extreme_activations_neither_saturate_nor_become_nan(library: NativeLibrary, rig):
    weight = np.full((64, 64), -128, np.int8)
    scale = np.full((64, 2, 1), 1, np.float16).view(np.uint8)
    blocks = np.concatenate([scale, weight.reshape(64, 2, 32).view(np.uint8)], axis=-1).reshape(64, -1)
    x = np.stack([np.full(64, 127.0), np.full(64, -127.0), np.zeros(64), np.full(64, 1e-38)]).astype(
        np.float32
    )
    expected = x @ weight.T.astype(np.float64)
    with NativeLinear(library, blocks, Source.Q8_0) as linear:
        for level in library.levels:
            out = np.full((4, 64), np.nan, np.float32)
            linear.run(x, out, level)
            assert np.allclose(out, expected, rtol=1e-6, atol=1e-30), level


def test_rows_that_are_not_whole_blocks_are_refused(library: NativeLibrary):
    with pytest.raises(NativeError, match="not made of Q4_0 blocks"):
        NativeLinear(library, np.zeros((4, 17), np.uint8), Source.Q4_0)
    with pytest.raises(NativeError, match="affine goes to affine only"):
        NativeLinear(library, np.zeros((4, 18), np.uint8), Source.Q4_0, kind=Kind.AFFINE4)
    scales = np.ones((4, 1), np.float32)
    quants = np.full((4, 32), 16, np.uint8)
    with pytest.raises(NativeError, match="4-bit weights end at 15"):
        NativeLinear(library, quants, Source.AFFINE, kind=Kind.AFFINE4, scales=scales, minima=scales)


@pytest.mark.parametrize("kind", [Kind.CHANNEL8, Kind.GROUP8, Kind.GROUP4, Kind.GROUP4_MIN])
@pytest.mark.parametrize(("outputs", "inputs", "rows"), SIZES)
def test_activations_of_12_bits_lose_a_sixteenth_of_what_8_lose(
    library: NativeLibrary, kind, outputs, inputs, rows
):
    rng = np.random.default_rng(inputs)
    weight = rng.normal(size=(outputs, inputs)).astype(np.float32)
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    x[:, 0] *= 50  # one large value in a group takes its neighbours' precision
    with NativeLinear(library, weight, Source.F32, kind=kind) as linear:
        values = np.stack([linear.row(i) for i in range(outputs)])
        run_all_levels(library, linear, x, values, ACTIVATION_ERROR / 16, activation_bits=12)


def test_activations_of_neither_8_nor_12_bits_are_refused(library: NativeLibrary):
    weight = np.ones((4, 32), np.float32)
    with NativeLinear(library, weight, Source.F32, kind=Kind.GROUP8) as linear:
        out = np.empty((1, 4), np.float32)
        with pytest.raises(NativeError, match="activation_bits is 16"):
            linear.run(np.ones((1, 32), np.float32), out, activation_bits=16)


@pytest.mark.parametrize("kind", [Kind.GROUP4, Kind.GROUP4_MIN, Kind.GROUP8, Kind.CHANNEL8])
def test_mixed_groups_are_as_fine_as_without_the_value_that_stands_out(library: NativeLibrary, kind: Kind):
    rng = np.random.default_rng(5)
    weight, x = rng.normal(size=(65, 576)).astype(np.float32), rng.normal(size=(33, 576)).astype(np.float32)
    plain = x.copy()
    for group in range(18):  # each row has one of them elsewhere in a group
        x[np.arange(33), 32 * group + (np.arange(33) + group) % 32] = 30 * (-1) ** group
    with NativeLinear(library, weight, Source.F32, kind=kind) as linear:
        values = np.stack([linear.row(i) for i in range(65)]).astype(np.float64)

        def error(inputs: np.ndarray, level: str, bits: int) -> np.ndarray:
            out = np.full((33, 65), np.nan, np.float32)
            linear.run(inputs, out, level, bits)
            return np.linalg.norm(out - inputs @ values.T, axis=1)

        for level in library.levels:
            mixed = error(x, level, MIXED_BITS)
            assert (mixed < error(x, level, 8) / 8).all(), level
            assert (mixed < 1.5 * error(plain, level, 8)).all(), level


def test_the_largest_4_bit_weights_times_the_largest_activations_do_not_overflow(library: NativeLibrary):
    heads = np.array([1, 0], np.float16).view(np.uint8)  # scale 1, minimum 0
    blocks = np.tile(np.concatenate([heads, np.full(16, 255, np.uint8)]), (9, 3))
    x = np.array([[1.0] * 96, [-1.0] * 96] * 6, np.float32)
    with NativeLinear(library, blocks, Source.Q4_1) as linear:
        for level in library.levels:
            for bits in (8, 12, MIXED_BITS):
                out = np.full((12, 9), np.nan, np.float32)
                linear.run(x, out, level, bits)
                assert np.allclose(out, [[15 * 96] * 9, [-15 * 96] * 9] * 6, rtol=1e-5), (level, bits)
