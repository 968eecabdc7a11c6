"""Input scales of a precision map: the eager backend's products of many tokens go by them."""

from pathlib import Path

import numpy as np
import pytest

from appliance.errors import BadSetting
from appliance.formats.gguf import read_gguf
from appliance.precision_map import PrecisionMap, check_names, map_file, read_map, write_map
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from oracles.llama import llama_logits
from oracles.tiny_model import CPU, TinyModel, logits_by_chunks, tiny_model

TOKENS = np.random.default_rng(5).integers(0, 273, 40).tolist()


def model_with_an_ignored_channel() -> TinyModel:
    """The feed-forward's inputs have one large channel, whose columns are nearly zero."""
    model = tiny_model()
    for layer in (0, 1):
        model.tensors[f"blk.{layer}.ffn_norm.weight"][11] = 200.0
        for name in ("gate", "up"):
            model.tensors[f"blk.{layer}.ffn_{name}.weight"][:, 11] *= 1e-5
    return model


MODEL = model_with_an_ignored_channel()
SCALES = {"0.gate_up": 4 / 127, "1.gate_up": 4 / 127}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return MODEL.write(tmp_path / "tiny.gguf", "F16")


def load(file: Path, input_scales: dict[str, float], activations: str = "int8") -> LoadedBackend:
    wishes = LoadWishes(
        backend="eager",
        precision="int8-mixed",
        activations=activations,
        kv_dtype="auto",
        device=CPU,
        num_threads=1,
        step_tokens=64,
        free_bytes=2**33,
        library_folder=file.parent,
        precision_map=PrecisionMap(input_scales=input_scales),
    )
    with read_gguf(file) as opened:
        loaded = load_backend(opened, wishes, lambda *_: None)
    loaded.backend.attach_kv(8)
    return loaded


def logits(loaded: LoadedBackend, chunk: int) -> np.ndarray:
    return logits_by_chunks(loaded.backend, TOKENS, (chunk,) * (len(TOKENS) // chunk))


def test_a_prompts_error_falls_where_one_scale_cuts_off_what_is_ignored(file: Path) -> None:
    exact = llama_logits(MODEL.tensors, MODEL.shape, TOKENS)[-1:]
    errors = [
        float(np.linalg.norm(logits(load(file, scales), 40) - exact) / np.linalg.norm(exact))
        for scales in ({}, SCALES)
    ]
    assert errors[1] < 0.5 * errors[0]


def test_few_tokens_are_multiplied_as_they_are(file: Path) -> None:
    assert np.array_equal(logits(load(file, SCALES), 1), logits(load(file, {}), 1))


def test_only_int8_activations_go_by_the_scales(file: Path) -> None:
    exact = logits(load(file, {}, "auto"), 40)
    assert np.array_equal(logits(load(file, SCALES, "auto"), 40), exact)
    assert not np.array_equal(logits(load(file, {}, "int8"), 40), exact)


def test_scales_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    wanted = PrecisionMap(kept=frozenset({"1.qkv"}), input_scales={"10.down": 1e-05, "2.qkv": 1 / 3})
    write_map(tmp_path / "m.gguf", wanted)
    assert read_map(tmp_path / "m.gguf") == wanted


@pytest.mark.parametrize("value", ["0", "-1.5", "nan", "inf", "true", "'x'", "[1.0]"])
def test_a_scale_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    model = tmp_path / "m.gguf"
    map_file(model).write_text(f'keep-16-bit = []\n[input-scales]\n"0.down" = {value}\n')
    with pytest.raises(BadSetting, match="numbers above 0"):
        read_map(model)
    map_file(model).write_text("keep-16-bit = []\ninput-scales = 3\n")
    with pytest.raises(BadSetting, match="numbers above 0"):
        read_map(model)


def test_names_are_checked() -> None:
    with pytest.raises(BadSetting, match=r"gives an input scale to '2\.down'"):
        check_names(PrecisionMap(input_scales={"2.down": 1.0}), num_layers=2)
    both = PrecisionMap(kept=frozenset({"1.down"}), input_scales={"1.down": 1.0})
    with pytest.raises(BadSetting, match=r"keeps '1\.down' in 16 bits and gives it an input scale"):
        check_names(both, num_layers=2)
