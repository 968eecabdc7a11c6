"""INT8 with matrices kept in 16 bits by name: the same map on both backends, and what it may cost."""

from pathlib import Path

import numpy as np
import pytest

from appliance.errors import BadSetting
from appliance.formats.gguf import read_gguf
from appliance.precision_map import PrecisionMap, check_names, map_file, read_map, write_map
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from oracles.llama import llama_logits
from oracles.tiny_model import CPU, logits_by_chunks, tiny_model

TOKENS = np.random.default_rng(5).integers(0, 273, 40).tolist()
MODEL = tiny_model()
ALL_KEPT = frozenset(f"{layer}.{place}" for layer in (0, 1) for place in ("qkv", "output", "gate_up", "down"))


@pytest.fixture
def library_folder(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("native-cpu"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return MODEL.write(tmp_path / "tiny.gguf", "F16")


def load(
    path: Path, folder: Path, backend: str, precision: str, kept: frozenset[str] = frozenset()
) -> LoadedBackend:
    wishes = LoadWishes(
        backend=backend,
        precision=precision,
        activations="int12",
        kv_dtype="auto",
        device=CPU,
        num_threads=1,
        step_tokens=64,
        free_bytes=2**33,
        library_folder=folder,
        precision_map=PrecisionMap(kept=kept),
    )
    with read_gguf(path) as opened:
        loaded = load_backend(opened, wishes, lambda *_: None)
    loaded.backend.attach_kv(8)
    return loaded


def error(loaded: LoadedBackend) -> float:
    expected = llama_logits(MODEL.tensors, MODEL.shape, TOKENS)
    found = logits_by_chunks(loaded.backend, TOKENS, (1,) * len(TOKENS))
    assert np.isfinite(found).all()
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


@pytest.mark.parametrize("backend", ["eager", "cpu"])
def test_kept_matrices_cost_bytes_and_save_error(file: Path, library_folder: Path, backend: str) -> None:
    plain = load(file, library_folder, backend, "int8")
    some = load(file, library_folder, backend, "int8-mixed", frozenset({"0.down", "1.qkv"}))
    every = load(file, library_folder, backend, "int8-mixed", ALL_KEPT)
    assert plain.weights_bytes < some.weights_bytes < every.weights_bytes
    assert error(every) < error(plain) < 0.06


def test_int8_takes_half_the_bytes_of_16_bits_on_the_eager_backend(file: Path, library_folder: Path) -> None:
    int8 = load(file, library_folder, "eager", "int8").weights_bytes
    bf16 = load(file, library_folder, "eager", "bf16").weights_bytes
    linear = sum(a.size for name, a in MODEL.tensors.items() if name.startswith("blk.") and a.ndim == 2)
    rows = sum(len(a) for name, a in MODEL.tensors.items() if name.startswith("blk.") and a.ndim == 2)
    assert bf16 - int8 == linear - 4 * rows


def test_a_map_is_read_back_as_it_was_written(file: Path) -> None:
    assert read_map(file) is None
    wanted = PrecisionMap(kept=frozenset({"1.qkv", "0.down"}))
    write_map(file, wanted)
    assert read_map(file) == wanted


@pytest.mark.parametrize("text", ["", "keep-16-bit = 3", "keep-16-bit = [3]", "keep-16-bit = ["])
def test_a_spoilt_map_is_named(file: Path, text: str) -> None:
    map_file(file).write_text(text)
    with pytest.raises(BadSetting, match="precision map"):
        read_map(file)


def test_a_name_that_no_matrix_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadSetting, match=r"'2\.down'.*0 to 1.*qkv, output, gate_up, down"):
        check_names(PrecisionMap(kept=frozenset({"2.down", "0.qkv"})), num_layers=2)
