"""The native CPU backend on every architecture: the recorded logits, and what it leaves to the eager one."""

import logging
from pathlib import Path

import numpy as np
import pytest

from appliance.errors import BadSetting
from appliance.formats.gguf import read_gguf
from appliance.formats.hf_folder import read_hf_folder
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from model.architecture_cases import CASES
from oracles.hf_model import CPU, RecordedModel, recorded_model
from oracles.llama import LlamaShape
from oracles.tiny_model import logits_by_chunks, tiny_model

# Root mean square error over that of the logits; pages are bf16. Sharp random attention makes the most of it.
COST = 0.02
# Of INT8 per channel and 4-bit groups of 32, on the same sharp attention.
NARROW_COST = {"int8": 0.06, "int4": 0.5}


@pytest.fixture
def library_folder(pytestconfig: pytest.Config) -> Path:
    """Where the kernels' own tests build the library too: once for all."""
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("native-cpu"))


def load(
    path: Path,
    library_folder: Path,
    served_context: int | None,
    *,
    backend: str = "cpu",
    num_threads: int = 2,
    precision: str = "f32",
) -> LoadedBackend:
    with read_gguf(path) if path.suffix == ".gguf" else read_hf_folder(path) as folder:
        wishes = LoadWishes(
            backend=backend,
            precision=precision,
            activations="auto",
            kv_dtype="auto",
            device=CPU,
            num_threads=num_threads,
            step_tokens=64,
            free_bytes=2**33,
            library_folder=library_folder,
            served_context=served_context,
        )
        return load_backend(folder, wishes, lambda *_: None)


@pytest.mark.parametrize("name", CASES)
def test_the_native_engine_gives_the_recorded_logits(tmp_path: Path, library_folder: Path, name: str) -> None:
    model = recorded_model(name)
    loaded = load(model.write(tmp_path / "model"), library_folder, model.served_context)
    assert loaded.backend_name.startswith("cpu (")
    cost = cost_of(loaded, model)
    print(f"{name}: {cost:.2g}")  # noqa: T201
    assert cost < COST


@pytest.mark.parametrize("precision", NARROW_COST)
@pytest.mark.parametrize("name", ["gemma3", "mixtral", "qwen3-moe"])
def test_experts_and_gemma_run_narrow_too(
    tmp_path: Path, library_folder: Path, name: str, precision: str
) -> None:
    model = recorded_model(name)
    path = model.write(tmp_path / "model")
    loaded = load(path, library_folder, model.served_context, precision=precision)
    assert (loaded.backend_name[:5], loaded.precision) == ("cpu (", precision)
    assert cost_of(loaded, model) < NARROW_COST[precision]


def cost_of(loaded: LoadedBackend, model: RecordedModel) -> float:
    """The logits' error as a share of them, where another implementation's are recorded."""
    loaded.backend.attach_kv(4)
    ends = [position + 1 for position in model.positions]
    chunks = tuple(end - start for start, end in zip([0, *ends[:-1]], ends, strict=True))
    found = logits_by_chunks(loaded.backend, model.tokens, chunks)
    assert np.isfinite(found).all()
    return float(np.sqrt(np.mean((found - model.logits) ** 2) / np.mean(model.logits**2)))


def test_a_shape_it_cannot_run_goes_to_the_eager_backend_with_one_line_that_says_why(
    tmp_path: Path, library_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny_model(shape=LlamaShape(head_size=24, rotary_size=24)).write(tmp_path / "tiny.gguf")
    with caplog.at_level(logging.WARNING):
        loaded = load(path, library_folder, None, backend="auto")
    assert loaded.backend_name == "eager"
    assert len([line for line in caplog.messages if "head_size 24 is not a multiple of 16" in line]) == 1
    with pytest.raises(BadSetting, match="head_size 24 is not a multiple of 16"):
        load(path, library_folder, None)


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_experts_answer_the_same_alone_in_pieces_and_on_any_number_of_threads(
    tmp_path: Path, library_folder: Path, name: str
) -> None:
    path = recorded_model(name).write(tmp_path / "model")
    tokens = recorded_model(name).tokens
    whole = None
    for num_threads, chunks in ((1, (50,)), (2, (50,)), (2, (31, 1, 1, 17)), (1, (3, 46, 1))):
        backend = load(path, library_folder, None, num_threads=num_threads, precision="int8").backend
        backend.attach_kv(4)
        last = logits_by_chunks(backend, tokens, chunks)[-1]
        whole = last if whole is None else whole
        assert np.array_equal(last, whole)
