"""Every architecture against the `transformers` model of that name: random weights, recorded logits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appliance.formats.gguf import read_gguf
from formats.safetensors_builder import write_hf_folder
from model.architecture_cases import CASES
from oracles.gguf_conversion import write_converted
from oracles.hf_model import RECORDED, RecordedModel, eager_backend, eager_from_folder, recorded_model
from oracles.tiny_model import logits_by_chunks

# Of the largest logit; the largest gap seen is printed by `python -m pytest -s`.
MARGIN = 2e-5


def largest_gap(found: np.ndarray, expected: np.ndarray) -> float:
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def chunks_ending_at(model: RecordedModel) -> tuple[int, ...]:
    """Chunks that end at each compared position: a prompt's pieces, and single tokens."""
    ends = [position + 1 for position in model.positions]
    return tuple(end - start for start, end in zip([0, *ends[:-1]], ends, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_prompts_in_pieces_give_the_logits_of_the_other_implementation(tmp_path: Path, name: str) -> None:
    model = recorded_model(name)
    backend = eager_from_folder(model.write(tmp_path / "model"), model.served_context)
    found = logits_by_chunks(backend, model.tokens, chunks_ending_at(model))
    gap = largest_gap(found, model.logits)
    print(f"{name}: {gap:.2g}")  # noqa: T201
    assert gap < MARGIN


@pytest.mark.parametrize("name", CASES)
def test_tokens_one_by_one_give_the_logits_of_the_other_implementation(tmp_path: Path, name: str) -> None:
    model = recorded_model(name)
    backend = eager_from_folder(model.write(tmp_path / "model"), model.served_context)
    found = logits_by_chunks(backend, model.tokens, (1,) * len(model.tokens))
    assert largest_gap(found[model.positions], model.logits) < MARGIN


def test_every_case_is_recorded() -> None:
    assert RECORDED.keys() == CASES.keys()


@pytest.mark.slow
def test_the_other_implementation_still_gives_what_is_recorded(tmp_path: Path) -> None:
    """Runs where `transformers` is installed, or in the environment that TRANSFORMERS_PYTHON names."""
    python = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
    if subprocess.run([python, "-I", "-c", "import transformers"], capture_output=True).returncode:
        pytest.skip("transformers is not installed; TRANSFORMERS_PYTHON may name a Python that has it")
    script = Path(__file__).parent / "record_transformers.py"
    # By itself and elsewhere: that library looks for a package of the name of one of ours.
    subprocess.run([python, "-I", script, tmp_path / "live.json"], cwd=tmp_path, check=True, timeout=1200)
    live = json.loads((tmp_path / "live.json").read_text())
    for name in CASES:
        assert live[name]["shapes"] == RECORDED[name]["shapes"]
        expected = recorded_model(name).logits
        assert largest_gap(recorded_model(name, live[name]).logits, expected) < MARGIN


# What GGUF says as the usual converter writes it: no window of Mistral's, no words of new config files.
IN_GGUF = [
    "llama 2", "llama with biases", "llama 3", "llama, linear", "mixtral", "qwen2", "qwen3", "qwen3-moe",
    "phi3, long", "phi3, short", "smollm3", "olmo2", "granite", "gemma2", "gemma3",
]  # fmt: skip


# A converted file has no place for these; its reader takes what the published models have.
GGUF_CHANGES = {
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 2},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "sliding_window_pattern": 6},
}


@pytest.mark.parametrize("name", IN_GGUF)
def test_the_same_model_as_gguf_gives_the_same_logits(tmp_path: Path, name: str) -> None:
    model = recorded_model(name)
    path = write_converted(tmp_path / "model.gguf", model.config | GGUF_CHANGES.get(name, {}), model.weights)
    with read_gguf(path) as file:
        backend = eager_backend(file, model.served_context)
    if name in GGUF_CHANGES:
        folder = write_hf_folder(tmp_path / "hf", model.config | GGUF_CHANGES[name], model.weights)
        twin = eager_from_folder(folder, model.served_context)
        expected = logits_by_chunks(twin, model.tokens, chunks_ending_at(model))
    else:
        expected = model.logits
    found = logits_by_chunks(backend, model.tokens, chunks_ending_at(model))
    assert largest_gap(found, expected) < MARGIN
