"""Weights that do not fit: refused before one is read, with the next precision that would serve."""

from pathlib import Path

import pytest

from appliance.errors import NotEnoughMemory
from appliance.formats.gguf import read_gguf
from appliance.runtime.cpu_loading import plan_native
from appliance.runtime.loading import LoadWishes, load_backend, require_room
from appliance.runtime.weights_room import SizedWeights, narrower_than, too_large
from oracles.llama import LlamaShape
from oracles.tiny_model import CPU, tiny_model

GIB, MIB = 2**30, 2**20
WIDE = LlamaShape(num_heads=16, num_kv_heads=8, head_size=64)
SIZES = [SizedWeights("bf16", 15 * GIB), SizedWeights("int8", 8 * GIB), SizedWeights("int4", 5 * GIB)]


def said(chosen: SizedWeights, room_bytes: int) -> str:
    place = "9.0 GiB are free"
    narrower = narrower_than(chosen, SIZES)
    return too_large(
        "m", chosen, narrower, place=place, room_bytes=room_bytes, num_parameters=8 * 10**9
    ).removeprefix(f"'m' needs {chosen.num_bytes / GIB:.1f} GiB as {chosen.precision} and {place}; ")


def test_the_widest_precision_that_fits_is_named_with_its_size() -> None:
    assert said(SIZES[0], 8 * GIB) == "--precision int8 needs 8.0 GiB"
    assert said(SIZES[0], 8 * GIB - 1) == "--precision int4 needs 5.0 GiB"
    assert said(SIZES[1], 8 * GIB - 1) == "--precision int4 needs 5.0 GiB"


def test_where_no_precision_fits_the_size_of_model_that_does_is_named() -> None:
    """At 4 bits 5 GiB hold 8 billion parameters, so 3 GiB hold 4.8."""
    assert said(SIZES[0], 3 * GIB) == (
        "even --precision int4 needs 5.0 GiB; choose a model under 4.8 billion parameters"
    )
    assert said(SIZES[2], 3 * GIB) == "choose a model under 4.8 billion parameters"
    assert said(SIZES[2], -1) == "choose a smaller model"


@pytest.mark.parametrize("type_name", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("precision", ["auto", "bf16", "int8", "int4"])
def test_what_a_load_is_expected_to_take_is_about_what_it_takes(
    tmp_path: Path, pytestconfig: pytest.Config, type_name: str, precision: str
) -> None:
    assert pytestconfig.cache is not None
    wishes = LoadWishes(
        backend="cpu",
        precision=precision,
        activations="auto",
        kv_dtype="auto",
        device=CPU,
        num_threads=1,
        step_tokens=64,
        free_bytes=2**33,
        library_folder=Path(pytestconfig.cache.mkdir("native-cpu")),
    )
    with read_gguf(tiny_model(shape=WIDE).write(tmp_path / "wide.gguf", type_name)) as file:
        expected = plan_native(file, precision, "auto").weights_bytes
        held = load_backend(file, wishes, lambda *_: None).weights_bytes
    assert 0.95 * held <= expected <= 1.3 * held


def test_a_16_bit_file_on_a_cpu_hears_which_precision_would_leave_a_pool(tmp_path: Path) -> None:
    path = tiny_model(shape=WIDE).write(tmp_path / "wide.gguf", "F16")
    with read_gguf(path) as file:
        plan = plan_native(file, "bf16", "auto")
        assert [sized.precision for sized in plan.narrower] == ["int8", "int4"]
        # As a model of a thousandfold size would be told.
        weights = SizedWeights("bf16", 2 * GIB)
        share = 2 * GIB / plan.weights_bytes
        narrower = tuple(SizedWeights(n.precision, int(n.num_bytes * share)) for n in plan.narrower)
        free_bytes = 2 * GIB
        words = r"2\.0 GiB are free; --precision int8 needs 1\.1 GiB, or close other"
        with pytest.raises(NotEnoughMemory, match=words):
            require_room(file, weights, narrower, free_bytes, 600 * MIB)
        assert narrower[0].num_bytes + 600 * MIB < free_bytes < narrower[0].num_bytes + GIB
        with pytest.raises(NotEnoughMemory, match=r"--precision int4 needs"):
            require_room(file, weights, narrower, free_bytes, GIB)
        assert plan_native(file, "int4", "auto").narrower == ()


def test_a_file_of_4_bits_is_not_told_to_become_what_it_is(tmp_path: Path) -> None:
    with read_gguf(tiny_model(shape=WIDE).write(tmp_path / "wide.gguf", "Q4_0")) as file:
        assert plan_native(file, "auto", "auto").narrower == ()
        assert [sized.precision for sized in plan_native(file, "bf16", "auto").narrower] == ["int8", "int4"]
