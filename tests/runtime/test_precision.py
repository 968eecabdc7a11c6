"""Words for devices, backends and precisions: what they mean, and what is refused until it is there."""

from pathlib import Path

import pytest
import torch

from appliance.config import KV_DTYPES
from appliance.errors import BadSetting, NotEnoughMemory, NoUsableGpu
from appliance.formats.gguf import read_gguf
from appliance.runtime.device import has_gpu_driver, select_device
from appliance.runtime.gpu_device import read_gpu, why_no_gpu
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from appliance.runtime.precision import kv_dtype, torch_device, weight_dtype
from oracles.tiny_model import CPU, tiny_model

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "int8": torch.int8}


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_a_dense_precision_is_itself(name: str) -> None:
    assert weight_dtype(name, CPU) == (name, DTYPES[name])


def test_auto_on_a_cpu_is_float32() -> None:
    assert weight_dtype("auto", CPU) == ("f32", torch.float32)


@pytest.mark.parametrize("name", ["int4"])
def test_a_precision_of_later_is_refused_with_those_of_now(name: str) -> None:
    words = f"--precision {name} does not run .*auto, f32, bf16, f16, int8, int8-mixed, nf4 or llm.int8"
    with pytest.raises(BadSetting, match=words) as caught:
        weight_dtype(name, CPU)
    assert caught.value.param == "precision"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("weights", ["f32", "bf16"])
@pytest.mark.parametrize("wanted", KV_DTYPES)
def test_every_kv_type_is_available_and_auto_follows_the_weights(wanted: str, weights: str) -> None:
    name, dtype = kv_dtype(wanted, weights)
    assert name == (weights if wanted == "auto" else wanted)
    assert dtype == DTYPES[name]


def test_the_cpu_can_always_be_chosen() -> None:
    assert str(select_device("cpu")) == "cpu"
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert select_device("auto").type == expected


def test_a_machine_where_torch_sees_a_gpu_has_a_driver() -> None:
    assert has_gpu_driver() or not torch.cuda.is_available()


@pytest.mark.parametrize("wanted", ["", "gpu", "tpu:0", "cuda:x", "mps", "meta", "cpu cuda"])
def test_a_word_that_is_no_device_is_refused(wanted: str) -> None:
    with pytest.raises(BadSetting, match="choose auto, cpu, cuda or cuda:N") as caught:
        select_device(wanted)
    assert caught.value.param == "device"


def test_a_gpu_that_is_not_there_is_refused_with_how_many_are() -> None:
    found = torch.cuda.device_count()
    trouble = "there" if found else why_no_gpu(read_gpu(torch.device("cuda")))
    assert trouble is not None
    with pytest.raises(NoUsableGpu) as caught:
        select_device(f"cuda:{found}")
    assert caught.value.message.startswith(f"--device cuda:{found} cannot be used: ")
    assert caught.value.message.endswith(f"{trouble}. Without a GPU: --device auto")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")
def test_a_driver_without_a_card_that_can_be_used_leaves_the_cpu_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert torch_device("auto") == CPU
    assert f"the CPU serves: {why_no_gpu(read_gpu(torch.device('cuda')))}" in caplog.text


def load(path: Path, *, free_bytes: int = 2**33, device: torch.device = CPU, **wishes: str) -> LoadedBackend:
    words = {"backend": "eager", "precision": "auto", "activations": "auto", "kv_dtype": "auto"} | wishes
    with read_gguf(path) as file:
        asked = LoadWishes(
            device=device,
            num_threads=1,
            step_tokens=64,
            free_bytes=free_bytes,
            library_folder=path.parent / "native",
            **words,
        )
        return load_backend(file, asked, lambda *_: None)


def test_a_load_says_what_was_decided(tmp_path: Path) -> None:
    model = tiny_model(has_head=True)
    path = model.write(tmp_path / "tiny.gguf", "Q8_0")
    num_elements = sum(array.size for array in model.tensors.values() if array.ndim == 2)
    loaded = load(path, precision="bf16", kv_dtype="int8")
    assert (loaded.backend_name, loaded.precision, loaded.kv_dtype) == ("eager", "bf16", "int8")
    assert loaded.weights_bytes == 2 * num_elements
    assert loaded.backend.kv_layout.is_int8
    assert loaded.backend.device == CPU
    assert load(path).precision == "f32"


def test_weights_that_do_not_fit_are_refused_before_one_is_read(tmp_path: Path) -> None:
    model = tiny_model()
    path = model.write(tmp_path / "tiny.gguf")
    needed = 4 * sum(array.size for array in model.tensors.values())
    matrices = 4 * sum(array.size for array in model.tensors.values() if array.ndim > 1)
    slack = 64 * 2**20
    assert load(path, free_bytes=needed + slack).weights_bytes == matrices
    with pytest.raises(NotEnoughMemory) as caught:
        load(path, free_bytes=needed + slack - 1)
    assert "'tiny.gguf' needs" in caught.value.message
    assert "as f32" in caught.value.message
    assert "--precision bf16 needs" in caught.value.message
    with pytest.raises(NotEnoughMemory, match="; choose a smaller model, or close other programs"):
        load(path, free_bytes=1000)


@pytest.mark.parametrize(
    "wishes",
    [{"backend": "cuda", "precision": "nf4"}, {"precision": "int4"}, {"backend": "cpu", "kv_dtype": "f32"}],
    ids=str,
)
def test_a_wish_that_cannot_be_met_is_refused_before_memory_is_looked_at(
    tmp_path: Path, wishes: dict[str, str]
) -> None:
    with pytest.raises(BadSetting):
        load(tiny_model().write(tmp_path / "tiny.gguf"), free_bytes=0, **wishes)


def test_the_cpu_backend_does_not_pretend_to_run_on_a_gpu(tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "tiny.gguf")
    with pytest.raises(BadSetting, match="--backend cpu does not run on --device cuda"):
        load(path, backend="cpu", device=torch.device("cuda"))


def test_auto_says_why_it_takes_the_slower_backend(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tiny_model().write(tmp_path / "tiny.gguf")
    assert load(path, backend="auto", kv_dtype="f32").backend_name == "eager"
    assert "using the eager backend" in caplog.text
    assert "bf16 or int8, not f32" in caplog.text
    with pytest.raises(BadSetting, match="--backend cpu cannot run this: its KV cache is bf16 or int8"):
        load(path, backend="cpu", kv_dtype="f32")
