"""A server that was asked for a GPU and has none: it stays up, says why, and ends with the right code."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from appliance import loader
from appliance.catalog import ModelFile
from appliance.config import Settings
from appliance.errors import DeviceLost, NotEnoughGpuMemory, NotEnoughMemory
from appliance.runtime.device import CPU, MainMemory
from appliance.runtime.gpu_device import read_gpu, why_no_gpu
from formats.gguf_builder import write_tiny_llama


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    model = write_tiny_llama(tmp_path / "tiny.gguf", type_name="Q8_0")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    environment |= {f"XDG_{name}_HOME": str(tmp_path) for name in ("CONFIG", "DATA", "CACHE", "STATE")}
    command = [sys.executable, "-m", "appliance", "serve", str(model), "--port", "0", "--no-dashboard"]
    process = subprocess.Popen(
        [*command, *request.param], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    match = re.match(r"Listening on (http://[^,]+),", process.stdout.readline())
    assert match is not None
    yield process, match[1]
    process.kill()
    process.communicate()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")
@pytest.mark.parametrize("server", [("--backend", "cuda"), ("--device", "cuda")], indirect=True)
def test_a_gpu_that_cannot_be_used_is_told_by_503_until_the_server_is_stopped(
    server: tuple[subprocess.Popen[str], str],
) -> None:
    process, url = server
    trouble = why_no_gpu(read_gpu(torch.device("cuda")))
    assert trouble is not None
    deadline_s = time.monotonic() + 60
    health = httpx.get(f"{url}/health")
    while health.json()["phase"] != "failed" and time.monotonic() < deadline_s:
        time.sleep(0.1)
        health = httpx.get(f"{url}/health")
    assert (health.status_code, health.json()["phase"]) == (503, "failed")
    assert trouble in health.json()["detail"]
    assert httpx.get(f"{url}/health/live").status_code == 200
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    refused = httpx.post(f"{url}/v1/chat/completions", content=json.dumps(body))
    assert refused.status_code == 503
    expected = f"the appliance cannot answer until it is started again: {health.json()['detail']}"
    assert refused.json()["error"]["message"] == expected
    assert httpx.post(f"{url}/api/chat", content=json.dumps(body)).json() == {"error": expected}
    anthropic = httpx.post(f"{url}/v1/messages", content=json.dumps(body | {"max_tokens": 9}))
    assert (anthropic.status_code, anthropic.json()["error"]["message"]) == (503, expected)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert "Not ready: the GPU cannot be used, as the log says" in out
    assert process.returncode == 2
    assert err.count(trouble) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("device", "kind"),
    [(MainMemory("cuda"), NotEnoughGpuMemory), (CPU, NotEnoughMemory)],
    ids=["card", "cpu"],
)
def test_a_card_that_is_too_full_is_told_from_a_machine_that_is(
    device: MainMemory, kind: type[NotEnoughMemory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise NotEnoughMemory("'m' needs 3 GiB; close the programs that hold 22 GiB of it")

    monkeypatch.setattr(loader, "select_device", lambda _: device)
    monkeypatch.setattr(loader, "_load_onto", full)
    found = ModelFile(model_id="m", path=tmp_path / "m.gguf")
    with pytest.raises(NotEnoughMemory, match="close the programs that hold 22 GiB") as caught:
        loader.load_model(Settings(), found, lambda *_: None)
    assert type(caught.value) is kind
    assert caught.value.exit_code == 7


def test_a_card_that_is_lost_while_a_model_is_loaded_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might be")

    monkeypatch.setattr(loader, "select_device", lambda _: MainMemory("cuda"))
    monkeypatch.setattr(loader, "_load_onto", lost)
    with pytest.raises(DeviceLost) as caught:
        loader.load_model(Settings(), ModelFile(model_id="m", path=tmp_path / "m.gguf"), lambda *_: None)
    assert caught.value.message.startswith(
        "the GPU stopped (CUDA error: unspecified launch failure); restart"
    )
    assert "\n" not in caught.value.message
