import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ApplianceError, BadModelFile, UnsupportedModel
from appliance.formats.gguf import GGMLType, GGUFFile, read_gguf
from formats.gguf_builder import (
    Stored,
    Typed,
    encode_tensor,
    gguf_bytes,
    metadata_value,
    string,
    tensor_record,
    write_gguf,
    write_tiny_llama,
)


def read_bytes(tmp_path: Path, data: bytes) -> GGUFFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return read_gguf(path)


def header(num_tensors: int = 0, num_metadata: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_metadata)


def one_tensor(record: bytes, num_bytes: int = 4096) -> bytes:
    head = header(num_tensors=1) + record
    return head + bytes(-len(head) % 32) + bytes(num_bytes)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_come_back_as_written(tmp_path: Path, version: int) -> None:
    weights = np.arange(21, dtype=np.float32).reshape(3, 7)
    metadata = {
        "a.int": 7,
        "a.negative": -7,
        "a.big": Typed(10, 2**63 + 1),
        "a.float": 0.5,
        "a.double": Typed(12, 0.1),
        "a.flag": True,
        "a.text": "naïve ✓",
        "a.texts": ["x", "", "ż"],
        "a.ints": [1, -2, 3],
        "a.floats": [1.0, 2.5],
        "a.none": [],
    }
    path = write_gguf(tmp_path / "ü b.gguf", metadata, {"w": weights, "v": weights[0]}, version=version)
    with read_gguf(path) as file:
        assert file.version == version
        assert file.path == path
        assert file.size_bytes == path.stat().st_size
        assert list(file.metadata) == list(metadata)
        assert file.metadata_int("a.int") == 7
        assert file.metadata_int("a.negative") == -7
        assert file.metadata_int("a.big") == 2**63 + 1
        assert file.metadata_float("a.float") == 0.5
        assert file.metadata_float("a.double") == 0.1
        assert file.metadata_float("a.int") == 7.0
        assert file.metadata_bool("a.flag") is True
        assert file.metadata_str("a.text") == "naïve ✓"
        assert file.metadata_strings("a.texts") == ("x", "", "ż")
        assert file.metadata_ints("a.ints").tolist() == [1, -2, 3]
        assert file.metadata_strings("a.none") == ()
        assert file.metadata_ints("a.none").tolist() == []
        assert list(file.tensors) == ["w", "v"]
        assert file.tensors["w"].shape == (3, 7)
        assert file.tensors["w"].num_elements == 21
        assert np.array_equal(file.raw("w").view(np.float32), weights)
        assert file.raw("v").shape == (1, 28)


def test_defaults_stand_in_for_missing_keys_only(tmp_path: Path) -> None:
    file = read_gguf(write_gguf(tmp_path / "m.gguf", {"a.int": 7, "a.flag": False}, {}))
    assert file.metadata_int("b", 3) == 3
    assert file.metadata_int("a.int", 3) == 7
    assert file.metadata_int("b", 0) == 0
    assert file.metadata_bool("a.flag", True) is False
    assert file.metadata_strings("b", ("x",)) == ("x",)
    with pytest.raises(BadModelFile, match=r"'llama\.block_count' is missing"):
        file.metadata_int("llama.block_count")


@pytest.mark.parametrize(
    ("getter", "key", "expected"),
    [
        ("metadata_int", "text", "an integer"),
        ("metadata_int", "flag", "an integer"),
        ("metadata_int", "float", "an integer"),
        ("metadata_float", "flag", "a number"),
        ("metadata_bool", "int", "a boolean"),
        ("metadata_str", "ints", "a text"),
        ("metadata_strings", "ints", "an array of texts"),
        ("metadata_ints", "texts", "an array of integers"),
        ("metadata_ints", "floats", "an array of integers"),
    ],
)
def test_a_value_of_another_type_is_refused_by_key(
    tmp_path: Path, getter: str, key: str, expected: str
) -> None:
    metadata = {
        "text": "x",
        "flag": True,
        "float": 1.5,
        "int": 1,
        "ints": [1],
        "texts": ["x"],
        "floats": [1.0],
    }
    file = read_gguf(write_gguf(tmp_path / "m.gguf", metadata, {}))
    with pytest.raises(BadModelFile, match=f"'{key}' is .* must be {expected}"):
        getattr(file, getter)(key)


def test_it_agrees_with_an_independent_reader(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", type_name="Q4_1")
    file, reference = read_gguf(path), GGUFReader(path)
    assert [tensor.name for tensor in reference.tensors] == list(file.tensors)
    for tensor in reference.tensors:
        assert file.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))
        assert file.tensors[tensor.name].type == tensor.tensor_type
        assert np.array_equal(file.raw(tensor.name).ravel(), tensor.data.view(np.uint8).ravel())
    for key in file.metadata:
        ours, theirs = file.metadata[key], reference.fields[key].contents()
        assert (list(ours) if isinstance(ours, tuple | np.ndarray) else ours) == theirs


def test_type_sizes_equal_the_reference_library() -> None:
    for known in GGMLQuantizationType:
        if known.name == "Q8_1":  # a type of activations; the library's table has an older size
            continue
        ours = GGMLType(int(known))
        assert (ours.name, ours.block_size, ours.block_bytes) == (known.name, *GGML_QUANT_SIZES[known])


def test_raw_views_are_read_only_and_outlive_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": np.ones((2, 3), dtype=np.float32)})
    with read_gguf(path) as file:
        view = file.raw("w")
    assert view.view(np.float32).sum() == 6
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    with pytest.raises(ValueError, match="closed"):
        file.raw("w")
    file.close()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    file = read_gguf(write_gguf(tmp_path / "m.gguf", {}, {}))
    with pytest.raises(BadModelFile, match=r"'output_norm\.weight' is missing"):
        file.raw("output_norm.weight")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has 0 bytes"),
        (b"GGUF", "has 4 bytes"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF model"),
        (header(version=1) + bytes(32), "version is 1"),
        (header(version=4), "version is 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(num_metadata=1) + struct.pack("<Q", 2**63 + 5) + bytes(8), "has 9223372036854775813 bytes"),
        (header(num_metadata=1) + struct.pack("<Q", 2**40) + bytes(8), "has 1099511627776 bytes"),
        (header(num_metadata=1) + string("k") + struct.pack("<IQ", 8, 2**40), "length exceeds the file"),
        (header(num_tensors=2**62), "the tensor count is 4611686018427387904 and the limit is"),
        (header(num_tensors=2**64 // 33), "the tensor count"),
        (header(num_metadata=2**62), "the metadata count is 4611686018427387904 and the limit is"),
        (header(num_metadata=1000), "the metadata count is 1000, which needs"),
        (header(num_tensors=1000), "the tensor count is 1000, which needs"),
        (header(num_metadata=1) + string("k") + struct.pack("<IIQ", 9, 10, 2**61), "length of the array 'k'"),
        (header(num_metadata=1) + string("k") + struct.pack("<IIQ", 9, 8, 2**61), "length of the array 'k'"),
        (header(num_metadata=1) + string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64), "holds arrays"),
        (header(num_metadata=1) + string("k") + struct.pack("<IB", 13, 1) + bytes(9), "type of 'k' is 13"),
        (header(num_metadata=1) + string("k") + struct.pack("<IIQ", 9, 99, 1), "items of 'k' is 99"),
        (header(num_metadata=1) + string("k") + struct.pack("<IB", 7, 2) + bytes(9), "boolean is 0 or 1"),
        (header(num_metadata=1) + string("k") + struct.pack("<IIQB", 9, 7, 1, 2), "neither 0 nor 1"),
        (header(num_metadata=1) + string("") + metadata_value(1) + bytes(9), "key 0 is empty"),
        (header(num_metadata=1) + string("a\0b") + metadata_value(1), "NUL"),
        (header(num_metadata=1) + string(b"\xff\xfe") + metadata_value(1), "not UTF-8"),
        (header(num_metadata=1) + string("k" * 70_000) + metadata_value(1), "has 70000 bytes"),
        (header(num_metadata=2) + 2 * (string("k.k") + metadata_value(1)), "'k.k' occurs twice"),
        (header(num_metadata=1) + string("k") + struct.pack("<I", 8) + string(b"\xff"), "'k' is not UTF-8"),
        (
            header(num_metadata=1) + string("k") + struct.pack("<IIQ", 9, 8, 1) + string(b"\xff"),
            r"\[0\] is not",
        ),
        (
            header(num_metadata=1) + string("k") + struct.pack("<IIQ", 9, 8, 2) + string("abc") + bytes(5),
            r"\[1\] lies past",
        ),
        (
            header(num_metadata=1) + string("k") + struct.pack("<IIQQ", 9, 8, 1, 2**63),
            r"\[0\] ends 9223372036854775808 bytes past",
        ),
    ],
)
def test_a_broken_header_is_refused_with_its_field(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(BadModelFile, match=message):
        read_bytes(tmp_path, data)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (tensor_record("t", (4, 1, 1, 1, 1), 0, 0), "'t' has 5 dimensions"),
        (tensor_record("t", (), 0, 0) + bytes(8), "'t' has 0 dimensions"),
        (string("t") + struct.pack("<I", 0xFFFFFFFF) + bytes(32), "'t' has 4294967295 dimensions"),
        (tensor_record("t", (4, 0), 0, 0), "'t' has a dimension of 0"),
        (tensor_record("t", (2**40, 2**40, 2**40), 0, 0), "'t' ends at byte"),
        (tensor_record("t", (4,), 999, 0), "'t' has the unknown type 999"),
        (tensor_record("t", (4,), 0, 2**40), "'t' ends at byte"),
        (tensor_record("t", (4,), 0, 2**64 - 32), "'t' ends at byte"),
        (tensor_record("t", (1025,), 0, 0), "'t' ends at byte"),
        (tensor_record("t", (4,), 0, 31), "'t' is at offset 31, not a multiple of 32"),
        (tensor_record("t", (33,), 8, 0), "'t' has rows of 33 and Q8_0 needs a multiple of 32"),
        (tensor_record("", (4,), 0, 0) + b"\0", "the name of tensor 0 is empty"),
    ],
)
def test_a_broken_tensor_is_refused_by_name(tmp_path: Path, record: bytes, message: str) -> None:
    with pytest.raises(BadModelFile, match=message):
        read_bytes(tmp_path, one_tensor(record))


def test_a_removed_tensor_type_is_unsupported_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="'t' has the type Q4_0_4_4"):
        read_bytes(tmp_path, one_tensor(tensor_record("t", (32,), 31, 0)))


def test_a_type_without_a_dequantizer_still_has_its_size(tmp_path: Path) -> None:
    file = read_bytes(tmp_path, one_tensor(tensor_record("t", (512, 3), int(GGMLType.Q4_K), 0)))
    assert file.tensors["t"].num_bytes == 6 * 144
    assert file.raw("t").shape == (3, 288)


def test_tensors_with_one_name_are_refused(tmp_path: Path) -> None:
    ones = np.ones(4, dtype=np.float32)
    with pytest.raises(BadModelFile, match=r"'blk\.0\.w' occurs twice"):
        read_bytes(tmp_path, gguf_bytes([], [("blk.0.w", ones), ("blk.0.w", ones)]))


def test_overlapping_tensors_are_refused_by_name(tmp_path: Path) -> None:
    records = tensor_record("b", (16,), 0, 32) + tensor_record("a", (16,), 0, 0)
    head = header(num_tensors=2) + records
    with pytest.raises(BadModelFile, match="'a' and 'b' overlap"):
        read_bytes(tmp_path, head + bytes(-len(head) % 32) + bytes(256))


def test_a_last_tensor_one_byte_short_is_refused(tmp_path: Path) -> None:
    data = gguf_bytes([], [("t", np.ones(5, dtype=np.float32))])
    assert read_bytes(tmp_path, data).raw("t").shape == (1, 20)
    with pytest.raises(BadModelFile, match="'t' ends at byte"):
        read_bytes(tmp_path, data[:-1])


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_a_stated_alignment_is_used(tmp_path: Path, alignment: int) -> None:
    tensors = {"a": np.full(3, 2, dtype=np.float32), "b": np.full(5, 3, dtype=np.float32)}
    file = read_gguf(write_gguf(tmp_path / "m.gguf", {"general.name": "x"}, tensors, alignment=alignment))
    assert file.raw("b").view(np.float32).tolist() == [[3.0] * 5]
    assert file.tensors["b"].offset % alignment == 0


@pytest.mark.parametrize("value", [Typed(4, 0), Typed(4, 3), Typed(4, 2**31), Typed(10, 32), "32", [32]])
def test_an_unusable_alignment_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(BadModelFile, match=r"'general\.alignment'"):
        read_bytes(tmp_path, gguf_bytes([("general.alignment", value)], []))


@pytest.mark.parametrize("sixteenths", range(16))
def test_a_truncated_file_is_refused(tmp_path: Path, sixteenths: int) -> None:
    data = write_tiny_llama(tmp_path / "whole.gguf").read_bytes()
    with pytest.raises(BadModelFile):
        read_bytes(tmp_path, data[: len(data) * sixteenths // 16])


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="cannot be opened: No such file"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(BadModelFile, match="is not a regular file"):
        read_gguf(tmp_path)


def test_lying_lengths_allocate_nothing(tmp_path: Path) -> None:
    tracemalloc.start()
    for lie in (2**24, 2**40, 2**63 + 5):
        for entry in (struct.pack("<Q", lie), string("k") + struct.pack("<IIQ", 9, 8, lie)):
            with pytest.raises(BadModelFile):
                read_bytes(tmp_path, header(num_metadata=1) + entry + bytes(16))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    metadata = {"general.name": "fuzz", "a.flag": True, "a.texts": ["x", "yy"], "a.ints": [1, 2]}
    tensors = {
        "t": encode_tensor(np.ones((3, 32)), "Q8_0"),
        "u": np.ones(3, dtype=np.float32),
        "k": Stored(12, (256,), bytes(144)),
    }
    return gguf_bytes(list(metadata.items()), list(tensors.items()))


@settings(max_examples=400, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_raise_nothing_but_our_errors(
    small_file: bytes, tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(small_file)
    for position, mask in flips:
        data[position % len(data)] ^= mask
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(data)
    try:
        file = read_gguf(path)
    except ApplianceError:
        return
    for name in file.tensors:
        assert file.raw(name).size == file.tensors[name].num_bytes
