import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ApplianceError, BadModelFile, UnsupportedModel
from appliance.formats.dequantize import dequantize
from appliance.formats.safetensors import MAX_HEADER_BYTES, SafetensorsFile, read_safetensors
from formats.safetensors_builder import bf16, safetensors_bytes, with_header

MEMORY_BOUND = 200 * 10**6


def read_bytes(tmp_path: Path, data: bytes) -> SafetensorsFile:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    return read_safetensors(path)


def entry(begin: int, end: int, *, shape: object = None, dtype: object = "F32") -> dict[str, object]:
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def with_entries(num_bytes: int, **entries: object) -> bytes:
    return with_header(json.dumps(entries).encode(), bytes(num_bytes))


def test_tensors_come_back_as_written(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    tensors = {
        "f32": values,
        "f16": values.astype(np.float16),
        "bf16": bf16(values),
        "i32": np.arange(6, dtype=np.int32).reshape(2, 3),
        "scalar": np.array(3, np.int64),
        "empty": np.zeros((0, 4), np.float32),
    }
    file = read_bytes(tmp_path, safetensors_bytes(tensors, {"format": "pt"}))
    assert list(file.tensors) == list(tensors)
    assert np.array_equal(dequantize(file, "f32"), values)
    assert np.array_equal(dequantize(file, "f16"), values.astype(np.float16).astype(np.float32))
    assert np.array_equal(dequantize(file, "bf16").view(np.uint32) >> 16, bf16(values))
    assert file.raw("i32").view(np.int32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (file.tensor("scalar").shape, file.raw("scalar").view(np.int64).item()) == ((), 3)
    assert file.raw("empty").shape == (0, 16)
    with pytest.raises(BadModelFile, match="'w' is missing"):
        file.raw("w")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has 0 bytes"),
        (
            with_header(b"{}", length=2**63),
            "9223372036854775808 bytes and 2 remain: the length exceeds the file",
        ),
        (with_header(b"{}", length=10), "the length exceeds the file"),
        (with_header(b"{}", length=0), "begins with b''"),
        (with_header(b"[]"), "must be a JSON object"),
        (with_header(b'{"a":"\xff"}'), "not UTF-8 at byte 6"),
        (with_header(b'{"a":' + b'{"a":' * 100_000), "nested too deeply"),
        (with_header(b'{"a":1,"a":2}'), "the key 'a' twice"),
        (with_header(b'{"a":1'), "not JSON"),
        (with_entries(8, a=entry(0, 8), b=entry(0, 8)), "'a' and 'b' overlap"),
        (with_entries(8, a=entry(0, 4), b=entry(0, 8)), "'a' and 'b' overlap"),
        (with_entries(12, a=entry(0, 4), b=entry(8, 12)), "4 bytes before tensor 'b' belong to none"),
        (with_entries(8, a=entry(4, 8)), "4 bytes before tensor 'a' belong to none"),
        (with_entries(9, a=entry(0, 8)), "1 bytes after the last tensor belong to none"),
        (with_entries(7, a=entry(0, 8)), "tensor 'a' ends at byte .* truncated"),
        (with_entries(8, a=entry(8, 0, shape=[2])), "a begin and an end"),
        (with_entries(8, a=entry(0, 8, shape=[3])), "its shape .3,. of F32 needs 12"),
        (with_entries(8, a=entry(0, 8, shape=[2**62, 2**62, 4])), "needs"),
        (with_entries(8, a=entry(0, 8, shape=[-2])), "whole numbers"),
        (with_entries(8, a=entry(0, 8, shape=[2.0])), "whole numbers"),
        (with_entries(8, a=entry(0, 8, shape=[True, 2])), "whole numbers"),
        (with_entries(8, a=entry(0, 8, shape="2")), "whole numbers"),
        (with_entries(8, a=entry(0, 8, shape=[1] * 9)), "9 dimensions and the limit is 8"),
        (with_entries(8, a={"dtype": "F32"}), "not described by"),
        (with_entries(8, a=[1]), "not described by"),
    ],
)
def test_a_broken_file_is_refused_with_its_fault(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(BadModelFile, match=message):
        read_bytes(tmp_path, data)


def test_an_unknown_element_type_is_unsupported_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="'a' has the type 'F8_E4M3'"):
        read_bytes(tmp_path, with_entries(8, a=entry(0, 8, shape=[8], dtype="F8_E4M3")))


@pytest.mark.parametrize(
    "header",
    [
        b"{" + b" " * MAX_HEADER_BYTES + b"}",
        b'{"a":[' + b"[]," * (MAX_HEADER_BYTES // 4) + b"[]]}",
        b'{"a":[' + b"999," * (MAX_HEADER_BYTES // 5) + b"1]}",
        b'{"a":' + b'{"":' * (MAX_HEADER_BYTES // 5),
    ],
    ids=["blank", "lists", "numbers", "objects"],
)
def test_a_huge_header_costs_little_memory(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header(header))
    tracemalloc.start()
    with pytest.raises(BadModelFile, match="limit"):
        read_safetensors(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 20 * 10**6


def test_the_worst_header_within_the_limits_stays_under_the_memory_bound(tmp_path: Path) -> None:
    text = "\U0001f600" + "x" * (MAX_HEADER_BYTES - 20)  # one wide character makes the whole text wide
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header(json.dumps({"a": text}, ensure_ascii=False).encode()))
    tracemalloc.start()
    with pytest.raises(BadModelFile, match="not described by"):
        read_safetensors(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < MEMORY_BOUND


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = safetensors_bytes({"a": np.ones((3, 5), np.float32), "b": np.ones(7, np.float16)}, {"k": "v"})
    for size in range(len(whole)):
        with pytest.raises(BadModelFile):
            read_bytes(tmp_path, whole[:size])


WHOLE = safetensors_bytes({"a": np.ones((3, 5), np.float32), "b": np.ones(7, np.float16)}, {"k": "v"})


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255))
def test_a_changed_byte_gives_an_error_or_the_same_layout(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(WHOLE[:position] + bytes([value]) + WHOLE[position + 1 :])
    try:
        file = read_safetensors(path)
    except ApplianceError:
        return
    assert sum(tensor.num_bytes for tensor in file.tensors.values()) == 74
