"""Matrices through bitsandbytes: what they hold, what they multiply to, what is said without the library."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.errors import BadSetting
from appliance.formats.gguf import read_gguf
from appliance.runtime.bitsandbytes_packing import bitsandbytes_packing
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from kernels.linear.reference import linear
from kernels.ops import AnyWeight
from oracles.llama import llama_logits
from oracles.tiny_model import CPU, logits_by_chunks, tiny_model

# NF4 knows 16 values within each 64; LLM.int8() 255 a row, of activations too.
PRECISIONS = {"nf4": 0.15, "llm.int8": 0.02}
TOKENS = np.random.default_rng(5).integers(0, 273, 20).tolist()


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))


def packed(precision: str, rows: torch.Tensor, bias: torch.Tensor | None = None) -> AnyWeight:
    """Packed from chunks of unequal length, as a loader brings them."""
    return bitsandbytes_packing(precision, torch.float32)(iter(rows.split([1, 64, 35])), bias)


def load(path: Path, precision: str) -> LoadedBackend:
    wishes = LoadWishes(
        backend="auto",
        precision=precision,
        activations="auto",
        kv_dtype="auto",
        device=CPU,
        num_threads=1,
        step_tokens=64,
        free_bytes=2**33,
        library_folder=path.parent / "native",
    )
    with read_gguf(path) as file:
        return load_backend(file, wishes, lambda *_: None)


@pytest.fixture
def _library() -> None:
    pytest.importorskip("bitsandbytes")


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("num_inputs", [64, 100])
@pytest.mark.parametrize("num_tokens", [1, 7])
def test_a_product_is_near_that_of_floats(precision: str, num_inputs: int, num_tokens: int) -> None:
    rows, bias, x = random(100, num_inputs), random(100), random(num_tokens, num_inputs)
    x[:, 3] *= 20  # an outlier, for which LLM.int8() was made
    exact = x @ rows.T + bias
    with torch.inference_mode():
        found = linear(x, packed(precision, rows, bias))
    assert found.dtype == torch.float32
    assert float((found - exact).norm() / exact.norm()) < PRECISIONS[precision]


@pytest.mark.usefixtures("_library")
def test_what_a_matrix_holds_is_counted() -> None:
    rows = random(100, 64)
    assert packed("nf4", rows).num_bytes == 100 * 64 // 2 + 4 * 100
    assert packed("llm.int8", rows).num_bytes == 100 * 64 + 4 * 100


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_model_runs_and_says_what_it_costs(
    tmp_path: Path, precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(has_bias=True)
    loaded = load(model.write(tmp_path / "tiny.gguf", "F16"), precision)
    assert (loaded.backend_name, loaded.precision, loaded.kv_dtype) == ("eager", precision, "bf16")
    assert f"--precision {precision}" in caplog.text
    loaded.backend.attach_kv(8)
    found = logits_by_chunks(loaded.backend, TOKENS, (12, 1, 7))
    expected = llama_logits(model.tensors, model.shape, TOKENS)[[11, 12, 19]]
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
    assert error < 4 * PRECISIONS[precision]


def test_without_the_library_the_remedy_is_named() -> None:
    with pytest.raises(BadSetting, match=r"needs the bitsandbytes library.*pip install bitsandbytes.*int8"):
        bitsandbytes_packing("nf4", torch.float32, library_name="a_library_that_is_not_there")


def test_the_librarys_advice_to_install_other_kernels_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "advising").mkdir()
    warns = "import logging\nlogging.getLogger('advising.cpu').warning('pip install kernels')\n"
    (tmp_path / "advising" / "__init__.py").write_text(warns)
    monkeypatch.syspath_prepend(tmp_path)
    bitsandbytes_packing("nf4", torch.float32, library_name="advising")
    assert caplog.records == []
    logging.getLogger("advising.cpu").warning("passed on")
    assert [record.message for record in caplog.records] == ["passed on"]
