"""Health, the snapshot and the line at the root."""

import logging

import msgspec
import pytest
from litestar.testing import TestClient

from appliance.engine.sequence import SamplingParams
from appliance.errors import DeviceLost
from appliance.log_ring import LogRing
from appliance.server.schemas import SystemSnapshot
from server.rig import MODEL_ID, Rig, chat, make_rig


def test_health_says_the_phase_until_ready() -> None:
    with make_rig(is_ready=False) as rig, rig.client() as client:
        assert client.get("/health").json()["phase"] == "starting"
        for phase, status in (("loading", 503), ("warming", 503), ("ready", 200), ("draining", 503)):
            rig.state.enter(phase, "detail", progress=0.5)
            response = client.get("/health")
            assert response.status_code == status
            body = response.json()
            assert (body["phase"], body["detail"], body["progress"]) == (phase, "detail", 0.5)
            assert ("retry-after" in response.headers) == (status == 503)
            assert client.head("/health").status_code == status
            assert client.get("/health/live").status_code == 200


def test_nothing_follows_draining() -> None:
    with make_rig() as rig:
        rig.state.enter("draining")
        rig.state.enter("ready")
        assert rig.state.status.phase == "draining"


def test_snapshot_while_loading_has_no_model() -> None:
    with make_rig(is_ready=False) as rig, rig.client() as client:
        snapshot = msgspec.json.decode(client.get("/system/v1/snapshot").content, type=SystemSnapshot)
        assert snapshot.phase == "starting"
        assert snapshot.model is snapshot.kv is snapshot.requests is None
        assert snapshot.memory is not None
        assert snapshot.memory.process_resident_bytes > 10**6


def test_snapshot_tells_of_model_requests_and_latency(rig: Rig, client: TestClient) -> None:
    for _ in range(3):
        client.post("/v1/chat/completions", json=chat())
    snapshot = msgspec.json.decode(client.get("/system/v1/snapshot").content, type=SystemSnapshot)
    assert snapshot.model is not None
    assert (snapshot.model.id, snapshot.model.device) == (MODEL_ID, "cpu")
    assert snapshot.requests is not None
    assert snapshot.requests.finished == 3
    assert snapshot.latency is not None
    num_tokens = len(rig.runner.replies)
    assert snapshot.latency.ttft.count == snapshot.latency.queue.count == snapshot.latency.tpot.count == 3
    assert snapshot.latency.itl.count == 3 * (num_tokens - 1)
    assert snapshot.latency.ttft.p50_s > 0
    assert snapshot.throughput is not None
    assert snapshot.throughput.output_tokens == 3 * num_tokens
    assert snapshot.kv is not None
    assert (
        snapshot.kv.used_blocks + snapshot.kv.cached_blocks + snapshot.kv.free_blocks
        == snapshot.kv.num_blocks
    )
    assert snapshot.sequences == ()


def test_snapshot_lists_live_sequences() -> None:
    with make_rig(step_s=0.01) as rig, rig.client() as client:
        rig.reply("a", ends=False)
        stream = rig.engine.submit([70, 71], SamplingParams())
        snapshot = msgspec.json.decode(client.get("/system/v1/snapshot").content, type=SystemSnapshot)
        (sequence,) = snapshot.sequences
        assert sequence.id == stream.sequence_id
        assert sequence.prompt_tokens == 2
        stream.cancel()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_root_says_what_runs_here(client: TestClient, method: str) -> None:
    response = client.request(method, "/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert response.text == ("Ollama is running" if method == "GET" else "")


def test_a_lost_device_leaves_the_server_up_and_says_why() -> None:
    with make_rig() as rig, rig.client() as client:
        rig.runner.error = DeviceLost("the GPU stopped (CUDA error); restart the appliance")
        client.post("/v1/chat/completions", json=chat())
        health = client.get("/health")
        assert health.status_code == 503
        assert (health.json()["phase"], health.json()["detail"]) == (
            "failed",
            "the GPU stopped (CUDA error); restart the appliance",
        )
        refused = client.post("/v1/chat/completions", json=chat())
        assert refused.status_code == 503
        assert "the GPU stopped (CUDA error); restart the appliance" in refused.text
        assert client.get("/health/live").status_code == 200


def test_logs_are_given_since_a_number_behind_the_key() -> None:
    with make_rig() as rig:
        rig.state.log_ring = LogRing()
        for text in ("one", "two"):
            rig.state.log_ring.handle(logging.makeLogRecord({"msg": text, "name": "a"}))
        with rig.client(api_key="sesame") as client:
            assert client.get("/system/v1/logs").status_code == 401
            headers = {"authorization": "Bearer sesame"}
            answer = client.get("/system/v1/logs?after=1", headers=headers).json()
            assert [(line["number"], line["message"]) for line in answer["lines"]] == [(2, "two")]
            for wrong in ("x", "-1", "9" * 400):
                refused = client.get(f"/system/v1/logs?after={wrong}", headers=headers)
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")
