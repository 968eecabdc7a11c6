"""The native CPU backend on every architecture: the recorded logits, and what it leaves to the eager one."""

import logging
from pathlib import Path

import numpy as np
import pytest

from appliance.errors import BadSetting
from appliance.formats.hf_folder import read_hf_folder
from appliance.runtime.loading import LoadedBackend, LoadWishes, load_backend
from model.architecture_cases import CASES
from oracles.hf_model import CPU, recorded_model
from oracles.tiny_model import logits_by_chunks

EXPERTS = [name for name in CASES if name.startswith(("mixtral", "qwen3-moe"))]
# Root mean square error over that of the logits; pages are bf16. Sharp random attention makes the most of it.
COST = 0.02


@pytest.fixture
def library_folder(pytestconfig: pytest.Config) -> Path:
    """Where the kernels' own tests build the library too: once for all."""
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("native-cpu"))


def load(path: Path, library_folder: Path, served_context: int | None, backend: str = "cpu") -> LoadedBackend:
    with read_hf_folder(path) as folder:
        wishes = LoadWishes(
            backend=backend,
            precision="f32",
            activations="auto",
            kv_dtype="auto",
            device=CPU,
            num_threads=2,
            step_tokens=64,
            free_bytes=2**33,
            library_folder=library_folder,
            served_context=served_context,
        )
        return load_backend(folder, wishes, lambda *_: None)


@pytest.mark.parametrize("name", [name for name in CASES if name not in EXPERTS])
def test_the_native_engine_gives_the_recorded_logits(tmp_path: Path, library_folder: Path, name: str) -> None:
    model = recorded_model(name)
    loaded = load(model.write(tmp_path / "model"), library_folder, model.served_context)
    assert loaded.backend_name.startswith("cpu (")
    loaded.backend.attach_kv(4)
    ends = [position + 1 for position in model.positions]
    chunks = tuple(end - start for start, end in zip([0, *ends[:-1]], ends, strict=True))
    found = logits_by_chunks(loaded.backend, model.tokens, chunks)
    assert np.isfinite(found).all()
    cost = float(np.sqrt(np.mean((found - model.logits) ** 2) / np.mean(model.logits**2)))
    print(f"{name}: {cost:.2g}")  # noqa: T201
    assert cost < COST


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_go_to_the_eager_backend_with_one_line_that_says_why(
    tmp_path: Path, library_folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = recorded_model(name)
    with caplog.at_level(logging.WARNING):
        loaded = load(model.write(tmp_path / "model"), library_folder, None, backend="auto")
    assert loaded.backend_name == "eager"
    assert [record for record in caplog.messages if "a mixture of 5 experts is not supported" in record]
    with pytest.raises(BadSetting, match="a mixture of 5 experts is not supported"):
        load(model.write(tmp_path / "model"), library_folder, None)
