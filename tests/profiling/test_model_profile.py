"""The profiler on a real file of two layers: every stage is timed, by both backends."""

import json
import time
from pathlib import Path

import pytest
import torch

from appliance.__main__ import main
from appliance.formats.gguf import read_gguf
from appliance.model.decoder import ForwardInputs, ForwardOutputs
from appliance.profiling.model_profile import traffic_of
from appliance.profiling.staged_backend import staged
from appliance.profiling.step_profile import profile_steps
from appliance.runtime.backend import EagerBackend, eager_kv_layout
from appliance.runtime.checkpoint import read_config
from appliance.runtime.loading import LoadedBackend
from appliance.runtime.weights import WeightLoader
from appliance.text.gguf_tokenizer import tokenizer_from_gguf
from formats.gguf_builder import write_tiny_llama
from kernels.tables import reference_ops


class SlowBackend(EagerBackend):
    """A forward pass with a sleep in it."""

    def forward(self, inputs: ForwardInputs) -> ForwardOutputs:
        time.sleep(0.02)
        return super().forward(inputs)


def test_each_stage_is_timed_and_a_slow_one_shows(tmp_path: Path) -> None:
    with read_gguf(write_tiny_llama(tmp_path / "tiny.gguf")) as file:
        tokenizer = tokenizer_from_gguf(file)
        architecture, config = read_config(file, None)
        loader = WeightLoader(file, dtype=torch.float32, device=torch.device("cpu"), progress=lambda _: None)
        weights = loader.load(architecture, config)
    layout = eager_kv_layout(config, torch.float32)
    backend = SlowBackend(config, weights, reference_ops(), layout)
    backend.attach_kv(16)
    found = profile_steps(staged(backend), tokenizer, dict, num_blocks=16, batch=3, context=9, num_steps=4)
    assert set(found.stages) == {
        "schedule", "inputs", "forward", "sample", "update", "detokenize", "encode chunk"
    }  # fmt: skip
    assert found.stages["forward"] > 0.02
    assert max(found.stages, key=lambda name: found.stages[name]) == "forward"
    loaded = LoadedBackend(
        backend=backend,
        config=config,
        backend_name="eager",
        precision="f32",
        kv_dtype="f32",
        weights_bytes=4000,
    )
    one, three = (traffic_of(loaded, 1000, batch=batch, context=9) for batch in (1, 3))
    # The weights are read once for all sequences, keys and values for each.
    assert three.num_bytes - one.num_bytes == 2 * 9 * config.num_layers * layout.token_bytes
    assert three.operations == pytest.approx(3 * one.operations)


def test_the_command_writes_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "false")  # no minutes of measuring: a compiler that refuses is told
    model = str(write_tiny_llama(tmp_path / "tiny.gguf"))
    flame, page, drawing = (tmp_path / name for name in ("f.json", "p.html", "r.svg"))
    arguments = [
        "profile",
        model,
        "--backend",
        "eager",
        "--prompt-tokens",
        "5",
        "--steps",
        "2",
        "--threads",
        "1",
    ]
    outputs = ["--flame", str(flame), "--html", str(page), "--roofline", str(drawing)]
    assert main([*arguments, *outputs]) == 0
    shown = capsys.readouterr().out
    assert "limits are unknown" in shown
    assert "aten::" in shown
    assert [f"batch {n}," in shown for n in (1, 8, 32)] == [True] * 3
    assert len(json.loads(flame.read_text())["profiles"]) == 3
    assert "<svg" in page.read_text()
    assert drawing.read_text().startswith("<svg")
