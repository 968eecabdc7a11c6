"""Which precision a GPU gets, what is said where nothing fits, and that packing in chunks changes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from appliance.errors import BadSetting, NotEnoughMemory
from appliance.formats.gguf import read_gguf
from appliance.model.config import ModelConfig
from appliance.runtime.backend import EagerBackend
from appliance.runtime.checkpoint import ModelFile, read_config
from appliance.runtime.cuda import cuda_kv_layout, least_reserve
from appliance.runtime.cuda_loading import (
    CudaDemands,
    CudaPlan,
    WeightSizes,
    choose_precision,
    open_backend,
    plan_cuda,
)
from appliance.runtime.gpu_device import GpuFacts
from appliance.runtime.loading import LoadWishes, load_backend
from appliance.runtime.weight_packing import int4_packing, int8_packing
from appliance.runtime.weights import WeightLoader
from kernels.int4_weight import Int4Weight, quantize_int4, unpack_int4
from kernels.int8_weight import Int8Weight, pack_int8
from kernels.tables import reference_ops
from oracles.tiny_model import CPU, logits_by_chunks, tiny_model

GIB = 2**30
# The shape of an 8B Llama: matrices of the layers, and all else.
EIGHT = WeightSizes(6_979_321_856, 1_050_939_392, 16.0)
KV = 5 * GIB


@pytest.mark.parametrize(
    ("room", "expected"), [(24, "bf16"), (19, "int8"), (13, "int4"), (7, "int4"), (1, "int4")]
)
def test_a_16_bit_file_gets_the_most_exact_that_leaves_a_pool(room: int, expected: str) -> None:
    assert choose_precision(EIGHT, room_bytes=room * GIB, kv_bytes=KV) == expected


@pytest.mark.parametrize(("bits", "expected"), [(4.5, "int4"), (5.0, "int4"), (5.5, "int8"), (8.5, "int8")])
def test_a_quantized_file_keeps_its_own_or_the_nearest_wider(bits: float, expected: str) -> None:
    assert choose_precision(replace(EIGHT, bits_in_file=bits), room_bytes=90 * GIB, kv_bytes=KV) == expected


def plan(path: Path, gpu: GpuFacts, **wishes: object) -> CudaPlan:
    words = {"precision": "auto", "kv_dtype": "auto", "max_sequences": 4, "step_tokens": 64} | wishes
    with read_gguf(path) as file:
        _, config = read_config(file)
        return plan_cuda(file, config, CudaDemands(context_length=128, is_context_asked=True, **words), gpu)


def card(free_bytes: int, total_bytes: int = 24 * GIB) -> GpuFacts:
    return GpuFacts(
        is_cuda_build=True,
        has_triton=True,
        name="Test Card",
        architecture=89,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
    )


def test_a_plan_says_what_weights_take_and_what_stays_free(tmp_path: Path) -> None:
    path = tiny_model(has_head=True).write(tmp_path / "tiny.gguf")
    found = plan(path, card(20 * GIB))
    assert (found.precision, found.kv_name, found.packing) == ("bf16", "bf16", None)
    assert found.reserve_bytes == least_reserve(24 * GIB) == -(-24 * GIB // 50)
    assert least_reserve(2 * GIB) == 384 * 2**20
    narrow = plan(path, card(20 * GIB), precision="int8", kv_dtype="int8")
    assert narrow.weights_bytes < found.weights_bytes
    assert narrow.kv_type is torch.int8
    assert plan(path, card(20 * GIB), precision="f16").kv_type is torch.float16


def test_what_does_not_fit_hears_which_precision_would_and_who_holds_the_rest(tmp_path: Path) -> None:
    path = tiny_model(has_head=True).write(tmp_path / "tiny.gguf")
    with read_gguf(path) as file:
        sizes = WeightSizes.of(file)
        _, config = read_config(file)
    pool_bytes = 128 * cuda_kv_layout(config, torch.int8).token_bytes * config.num_layers
    around = least_reserve(24 * GIB) + GIB + pool_bytes
    with pytest.raises(NotEnoughMemory) as caught:
        plan(path, card(around + sizes.num_bytes("int8")), precision="bf16")
    assert "'tiny.gguf' needs" in caught.value.message
    assert "as bf16 and the Test Card has" in caught.value.message
    assert "--precision int8 needs" in caught.value.message
    # A byte less, and the precision that is named leaves no pool.
    with pytest.raises(NotEnoughMemory, match="--precision int4 needs"):
        plan(path, card(around + sizes.num_bytes("int8") - 1), precision="bf16")
    assert "close the programs that hold 22." in caught.value.message
    with pytest.raises(NotEnoughMemory, match=r"even --precision int4 needs .*; choose a smaller model$"):
        plan(path, card(GIB, GIB), precision="bf16")


@pytest.mark.parametrize(
    ("precision", "remedy"),
    [("bf16", "--precision int8"), ("int8", "--precision int4"), ("int4", "a smaller model")],
)
def test_steps_that_do_not_fit_beside_the_weights_hear_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, remedy: str
) -> None:
    def full(*_: object) -> tuple[int, int]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    path = tiny_model().write(tmp_path / "tiny.gguf")
    with read_gguf(path) as file:
        architecture, config = read_config(file)
        weights = WeightLoader(file, dtype=torch.float32, device=CPU).load(architecture, config)
    demands = CudaDemands(
        precision=precision,
        kv_dtype="auto",
        max_sequences=32,
        step_tokens=512,
        context_length=128,
        is_context_asked=True,
    )
    with pytest.raises(NotEnoughMemory) as caught:
        open_backend(config, weights, plan(path, card(20 * GIB), precision=precision), demands, None)
    assert f"{precision} weights take" in caught.value.message
    assert "compute 32 sequences and 512 tokens at once" in caught.value.message
    lower = "lower --max-sequences to 8 and --step-tokens to 256, or choose "
    assert caught.value.message.endswith(lower + remedy)


def test_memory_that_others_take_while_weights_are_loaded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("appliance.runtime.tensor_loading.read_gpu", lambda _: card(20 * GIB))
    monkeypatch.setattr(WeightLoader, "load", full)
    wishes = LoadWishes(
        backend="cuda",
        precision="auto",
        activations="auto",
        kv_dtype="auto",
        device=torch.device("cuda"),
        num_threads=1,
        step_tokens=64,
        free_bytes=2**33,
        library_folder=tmp_path,
    )
    with (
        read_gguf(tiny_model().write(tmp_path / "tiny.gguf")) as file,
        pytest.raises(NotEnoughMemory, match="other programs must have taken meanwhile; close them"),
    ):
        load_backend(file, wishes, lambda *_: None)


@pytest.mark.parametrize(("name", "value"), [("precision", "f32"), ("kv_dtype", "f32")])
def test_32_bits_are_refused_on_a_gpu(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(BadSetting, match="f32 does not run on the GPU backend") as caught:
        plan(tiny_model().write(tmp_path / "tiny.gguf"), card(20 * GIB), **{name: value})
    assert caught.value.param == name


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")
def test_the_gpu_backend_without_a_card_is_refused_in_one_sentence(tmp_path: Path) -> None:
    wishes = LoadWishes(
        backend="cuda",
        precision="auto",
        activations="auto",
        kv_dtype="auto",
        device=CPU,
        num_threads=1,
        step_tokens=64,
        free_bytes=2**33,
        library_folder=tmp_path,
    )
    with (
        read_gguf(tiny_model().write(tmp_path / "tiny.gguf")) as file,
        pytest.raises(BadSetting, match=r"^--backend cuda cannot be used: ") as caught,
    ):
        load_backend(file, wishes, lambda *_: None)
    assert caught.value.param == "backend"


def test_a_matrix_packed_in_chunks_is_the_one_packed_whole() -> None:
    rows_OI = torch.randn(50, 96, generator=torch.Generator().manual_seed(0))
    bias = torch.randn(50)
    eight = int8_packing(torch.float16)(rows_OI.split(7), bias)
    assert isinstance(eight, Int8Weight)
    assert eight.takes_int8_tokens
    assert eight.activation_dtype is torch.float16
    assert eight.bias is bias
    assert torch.equal(eight.weight, pack_int8(rows_OI).weight)
    assert torch.equal(eight.scales, pack_int8(rows_OI).scales)
    four = int4_packing(torch.float16)(rows_OI.split(7), None)
    assert isinstance(four, Int4Weight)
    assert torch.equal(unpack_int4(four), unpack_int4(quantize_int4(rows_OI)))
    assert isinstance(int4_packing(torch.float16)(rows_OI[:, :40].split(7), None), Int8Weight)


def quantized(file: ModelFile, config: ModelConfig, packing: object) -> EagerBackend:
    architecture, _ = read_config(file)
    weights = WeightLoader(file, dtype=torch.float32, device=CPU, packing=packing).load(architecture, config)
    backend = EagerBackend(config, weights, reference_ops(), cuda_kv_layout(config, torch.float32))
    backend.attach_kv(8)
    return backend


def test_a_quantized_load_answers_nearly_as_the_file(tmp_path: Path) -> None:
    tokens = [5, 77, 130, 9, 200, 31, 4]
    with read_gguf(tiny_model(seed=4, has_bias=True).write(tmp_path / "tiny.gguf")) as file:
        _, config = read_config(file)
        found = {
            name: torch.from_numpy(
                logits_by_chunks(quantized(file, config, packing), tokens, (1,) * len(tokens))
            )
            for name, packing in (
                ("f32", None),
                ("int8", int8_packing(torch.float32)),
                ("int4", int4_packing(torch.float32)),
            )
        }
    size = found["f32"].std()
    # Two random layers: 8 bits cost about 1% of the logits' spread, 4 bits about 10%.
    assert 0 < (found["int8"] - found["f32"]).std() < 0.05 * size
    assert (found["int8"] - found["f32"]).std() < (found["int4"] - found["f32"]).std() < 0.4 * size
