"""Headers changed at random and files cut short: a clear error or a whole model, soon and in little memory.

A few hundred in the normal run; the 10,000 of the full one are marked slow.
"""

import random
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from appliance.errors import ApplianceError
from appliance.formats.gguf import GGUFFile
from appliance.formats.hf_folder import HFFolder
from appliance.formats.model_file import open_model_file
from appliance.text.model_text import read_template, read_tokenizer
from formats.gguf_builder import write_tiny_llama
from formats.safetensors_builder import safetensors_bytes, write_hf_folder

FEW, MANY, CUTS = 400, 10_000, 200
MOST_BYTES = 200 * 10**6
# Of the process itself: other work on the machine does not count.
MOST_S = 2.0
# Bytes that lengths, counts and types are made of when they go wrong.
EXTREMES = (b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7, b"\x00" * 7 + b"\x80", b"\x00" * 4, b"\xff" * 4)


def mutated(data: bytes, header_bytes: int, rng: random.Random) -> bytes:
    """Return the file with its header changed in one to four places."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(header_bytes)
        kind = rng.randrange(4)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            extreme = rng.choice(EXTREMES)
            changed[at : at + len(extreme)] = extreme
        elif kind == 2:
            changed[at : at + rng.randint(1, 16)] = rng.randbytes(rng.randint(0, 16))
        else:
            start = rng.randrange(header_bytes)
            changed[at:at] = changed[start : start + rng.randint(1, 64)]
    return bytes(changed)


def open_wholly(path: Path) -> GGUFFile | HFFolder:
    """Open a model as a load does: directory, tokenizer, template, every tensor's bytes."""
    file = open_model_file(path)
    for name, tensor in file.tensors.items():
        assert file.raw(name).nbytes == tensor.num_bytes
    if isinstance(file, GGUFFile):
        read_tokenizer(file)
        read_template(file)
    return file


def check_all(path: Path, data: bytes, variants: list[bytes]) -> int:
    """Open each variant; return how many were refused. Raises for anything but an error of ours."""
    refused = 0
    tracemalloc.start()
    for variant in variants:
        path.write_bytes(variant)
        tracemalloc.reset_peak()
        started_s = time.process_time()
        try:
            open_wholly(path if path.suffix == ".gguf" else path.parent)
        except ApplianceError:
            refused += 1
        assert time.process_time() - started_s < MOST_S
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    tracemalloc.stop()
    path.write_bytes(data)
    return refused


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "m.gguf")


@pytest.fixture
def safetensors(tmp_path: Path) -> Path:
    tensors = {f"model.layers.{i}.w": np.ones((4, 8), np.float32) for i in range(20)}
    return write_hf_folder(tmp_path / "m", {"model_type": "llama"}, tensors) / "model.safetensors"


def header_bytes(path: Path) -> int:
    data = path.read_bytes()
    if path.suffix == ".gguf":
        return min(tensor.offset for tensor in open_wholly(path).tensors.values())
    return 8 + int.from_bytes(data[:8], "little")


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_changed_headers_are_refused_or_harmless(
    request: pytest.FixtureRequest, kind: str, count: int
) -> None:
    path: Path = request.getfixturevalue(kind)
    data, header, rng = path.read_bytes(), header_bytes(path), random.Random(count)
    refused = check_all(path, data, [mutated(data, header, rng) for _ in range(count)])
    assert refused > count // 4


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_a_file_cut_anywhere_is_refused(request: pytest.FixtureRequest, kind: str) -> None:
    path: Path = request.getfixturevalue(kind)
    data = path.read_bytes()
    # The last tensor of a GGUF file ends within its padding.
    end = (
        len(data) - 1
        if kind == "safetensors"
        else max(tensor.offset + tensor.num_bytes for tensor in open_wholly(path).tensors.values()) - 1
    )
    cuts = [data[: end * cut // CUTS] for cut in range(CUTS)]
    assert check_all(path, data, [*cuts, data[:end]]) == CUTS + 1


def test_an_index_of_a_folder_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = write_hf_folder(
        tmp_path, {}, {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)}, num_shards=2
    )
    index = path / "model.safetensors.index.json"
    data = index.read_bytes()
    for end in range(len(data)):
        index.write_bytes(data[:end])
        with pytest.raises(ApplianceError):
            open_wholly(path)
    assert safetensors_bytes({})[8:] == b"{}"
