"""The native engine serves where torch cannot be imported: it would cost 190 MB and a second and a half."""

import subprocess
import sys
from pathlib import Path

import pytest

from oracles.tiny_model import tiny_model

ROOT = Path(__file__).resolve().parent.parent.parent

SERVE = """
import sys
from pathlib import Path

sys.modules["torch"] = None  # importing it is an ImportError from here on

import appliance.loader  # noqa: F401  # what `appliance serve` imports
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import SamplingParams
from appliance.engine.stream import FinishEvent
from appliance.formats.gguf import read_gguf
from appliance.runtime.device import select_device
from appliance.runtime.loading import LoadWishes, load_backend
from appliance.runtime.runners import make_runner

wishes = LoadWishes(
    backend="auto", precision="auto", activations="auto", kv_dtype=sys.argv[3], device=select_device("cpu"),
    num_threads=2, step_tokens=64, free_bytes=2**33, library_folder=Path(sys.argv[2]),
)
with read_gguf(Path(sys.argv[1])) as file:
    loaded = load_backend(file, wishes, lambda *_: None)
loaded.backend.attach_kv(40)
pool = BlockPool(40, loaded.backend.kv_layout.block_size)
engine = Engine(
    make_runner(loaded.backend), Scheduler(pool, max_sequences=8, step_tokens=64, context_length=512)
)
asked = [
    {"temperature": 0.0},
    {"top_k": 5, "seed": 1},
    {"top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.1, "repetition_penalty": 1.2},
    {"logit_bias": ((3, 100.0),), "min_tokens": 2, "stop_token_ids": frozenset({3})},
    {"num_logprobs": 3, "num_prompt_logprobs": 2},
    {"num_logprobs": 0, "scored_token_ids": (5, 7)},
    {"wants_hidden_state": True},
    {"wants_hidden_state": True, "wants_mean_state": True},
]
prompt = [1 + i % 200 for i in range(70)]
streams = [engine.submit(prompt, SamplingParams(max_tokens=4, **each)) for each in asked]
streams += engine.submit_choices(prompt, [SamplingParams(max_tokens=4, seed=i) for i in range(3)])
while engine.step():
    pass
print(loaded.backend_name, *(str(e.reason) for s in streams for e in s if isinstance(e, FinishEvent)))
"""


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_the_native_engine_serves_without_torch(tmp_path: Path, library_folder: Path, kv_dtype: str) -> None:
    """Every way to choose a token and to read a prompt, and answers that share a prompt's blocks."""
    path = tiny_model(has_head=True).write(tmp_path / "tiny.gguf", "Q8_0")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", SERVE, str(path), str(library_folder), kv_dtype],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr
    name, reasons = ran.stdout.split(") ")
    assert name.startswith("cpu (")
    assert reasons.split() == [*["length"] * 3, "stop", *["length"] * 7]


@pytest.fixture
def library_folder(pytestconfig: pytest.Config) -> Path:
    """Where the kernels' own tests build the library too: once for all."""
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("native-cpu"))
