"""Scales of a precision map: folded in, they change no product; unfit ones are refused."""

from pathlib import Path

import numpy as np
import pytest

from appliance.errors import BadSetting
from appliance.formats.gguf import read_gguf
from appliance.precision_map import PrecisionMap, read_map, scales_file, write_map
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from oracles.tiny_model import CPU, TinyModel, logits_by_chunks, tiny_model

TOKENS = np.random.default_rng(5).integers(0, 273, 20).tolist()


@pytest.fixture
def library_folder(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("native-cpu"))


def load(
    model: TinyModel, folder: Path, backend: str, precision: str, wanted: PrecisionMap, file: Path
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
        precision_map=wanted,
    )
    with read_gguf(model.write(file)) as opened:
        loaded = load_backend(opened, wishes, lambda *_: None)
    loaded.backend.attach_kv(8)
    return loaded


def random_scales(model: TinyModel) -> PrecisionMap:
    shape, rng = model.shape, np.random.default_rng(9)

    def scales(size: int) -> np.ndarray:
        return np.exp(rng.uniform(-1, 1, size)).astype(np.float32)

    found = {}
    for layer in range(shape.num_layers):
        heads = scales(shape.num_kv_heads * shape.head_size).reshape(shape.num_kv_heads, 1, -1)
        group = shape.num_heads // shape.num_kv_heads
        found[f"{layer}.output"] = np.broadcast_to(
            heads, (shape.num_kv_heads, group, shape.head_size)
        ).reshape(-1)
        found |= {f"{layer}.qkv": scales(64), f"{layer}.gate_up": scales(64), f"{layer}.down": scales(96)}
    return PrecisionMap(scales=found)


@pytest.mark.parametrize("backend", ["eager", "cpu"])
def test_folded_scales_change_no_product(tmp_path: Path, library_folder: Path, backend: str) -> None:
    model = tiny_model(has_bias=True)
    file = tmp_path / "tiny.gguf"
    plain, scaled = (
        logits_by_chunks(load(model, library_folder, backend, "f32", wanted, file).backend, TOKENS, (20,))
        for wanted in (PrecisionMap(), random_scales(model))
    )
    # The native engine's pages hold values in bfloat16, and scaled ones round elsewhere.
    tolerance = 1e-4 if backend == "eager" else 0.05
    assert np.isfinite(scaled).all()
    assert np.abs(scaled - plain).max() < tolerance * np.abs(plain).max()


def test_scales_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    wanted = PrecisionMap(scales={"0.down": np.array([1.5, 2.5], np.float32)})
    write_map(tmp_path / "m.gguf", wanted)
    found = read_map(tmp_path / "m.gguf")
    assert found is not None
    assert np.array_equal(found.scales["0.down"], wanted.scales["0.down"])
    write_map(tmp_path / "m.gguf", PrecisionMap())
    assert read_map(tmp_path / "m.gguf") == PrecisionMap()


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive"])
def test_spoilt_scales_are_named(tmp_path: Path, content: bytes) -> None:
    model = tmp_path / "m.gguf"
    write_map(model, PrecisionMap())
    scales_file(model).write_bytes(content)
    with pytest.raises(BadSetting, match="channel scales"):
        read_map(model)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_are_above_zero(tmp_path: Path, value: float) -> None:
    model = tmp_path / "m.gguf"
    write_map(model, PrecisionMap(scales={"0.down": np.array([1.0, value], np.float32)}))
    with pytest.raises(BadSetting, match="not above 0"):
        read_map(model)


def test_scales_of_another_model_are_refused(tmp_path: Path, library_folder: Path) -> None:
    wanted = PrecisionMap(scales={"0.down": np.ones(95, np.float32)})
    with pytest.raises(BadSetting, match=r"'0\.down' do not fit"):
        load(tiny_model(), library_folder, "eager", "f32", wanted, tmp_path / "tiny.gguf")
