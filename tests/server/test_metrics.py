"""`/metrics` and `/system/v1/requests`: their figures are those of the requests that were answered."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from litestar.testing import TestClient

from appliance.server.schemas import FinishedRequests
from server.rig import MODEL_ID, Rig, chat

# What a Prometheus sends: it must not be answered in a format that spoils the names.
ACCEPTED = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
BOARD = Path(__file__).resolve().parents[2] / "packaging" / "grafana" / "appliance.json"


def scraped(client: TestClient) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    answer = client.get("/metrics", headers={"accept": ACCEPTED})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.text)
    return {
        sample.name
        + "".join(f" {value}" for key, value in sorted(sample.labels.items()) if key != "model_name"): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


def test_metrics_count_what_was_answered(rig: Rig, client: TestClient) -> None:
    num_tokens = len(rig.runner.replies)
    for is_streamed in (True, False, True):
        client.post("/v1/chat/completions", json=chat(stream=is_streamed))
    client.post("/v1/chat/completions", json=chat(temperature=99))
    rig.wait_idle()
    found = scraped(client)
    assert found["vllm:time_to_first_token_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_count"] == 3 * (num_tokens - 1)
    assert found["vllm:inter_token_latency_seconds_bucket +Inf"] == 3 * (num_tokens - 1)
    assert found["vllm:generation_tokens_total"] == 3 * num_tokens
    assert found["vllm:request_success_total stop"] == 3
    assert found["appliance_http_responses_total 400"] == 1
    assert found["vllm:num_requests_running"] == found["vllm:kv_cache_usage_perc"] == 0
    assert found["appliance_ready"] == 1


def test_each_service_class_is_counted(client: TestClient) -> None:
    for tier in ("priority", "flex", "flex"):
        client.post("/v1/chat/completions", json=chat(service_tier=tier))
    found = scraped(client)
    started = {each: found[f"appliance_class_started_total {each}"] for each in ("gold", "silver", "bronze")}
    assert started == {"gold": 1, "silver": 0, "bronze": 2}
    assert found["appliance_class_in_time_total bronze"] == 2
    assert found["appliance_class_refused_total gold"] == found["appliance_class_waiting long gold"] == 0
    classes = client.get("/system/v1/snapshot").json()["classes"]
    assert [(each["service_class"], each["started"]) for each in classes] == list(started.items())
    assert all(each["started"] == each["in_time"] for each in classes)


def test_a_scrape_before_the_model_is_there_works(rig: Rig, client: TestClient) -> None:
    rig.state.pool.remove(MODEL_ID)
    assert scraped(client)["appliance_uptime_seconds"] > 0


def test_every_query_of_the_board_names_metrics_that_exist(rig: Rig, client: TestClient) -> None:
    client.post("/v1/chat/completions", json=chat())
    rig.wait_idle()
    known = {name.split(" ")[0] for name in scraped(client)}
    board = json.loads(BOARD.read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    asked = {name for query in queries for name in re.findall(r"(?:vllm:|appliance_)[a-z0-9_]+", query)}
    assert len(asked) >= 12
    assert asked - known == set()


def test_requests_are_told_stage_by_stage(rig: Rig, client: TestClient) -> None:
    rig.runner.step_s = 0.01
    for is_streamed in (True, False):
        client.post("/v1/chat/completions", json=chat(stream=is_streamed))
    rig.wait_idle()
    answer = client.get("/system/v1/requests?by=model&limit=1")
    found = msgspec.json.decode(answer.content, type=FinishedRequests)
    (request,) = found.requests
    assert request.detokenize_s > 0
    assert request.receive_s > 0
    assert (request.model, request.reason, request.service_class) == (MODEL_ID, "stop", "silver")
    assert request.request_id.startswith("chatcmpl-")
    assert request.prefill_s > 0
    # The first token may be seen late on a busy machine: only both together have a least length.
    assert request.prefill_s + request.decode_s >= 0.01 * request.output_tokens
    assert request.longest_gap_s >= 0.01
    prepared = request.parse_s + request.template_s + request.tokenize_s
    stages = prepared + request.queue_s + request.prefill_s + request.decode_s
    assert stages <= request.total_s
    (group,) = found.percentiles
    assert group.group == MODEL_ID
    assert group.stages["ttft"].count == group.stages["decode"].count == 2


@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_answer_tells_how_long_its_client_took(rig: Rig, client: TestClient, is_streamed: bool) -> None:
    client.post("/v1/chat/completions", json=chat(stream=is_streamed))
    rig.wait_idle()
    (request,) = client.get("/system/v1/requests").json()["requests"]
    assert request["send_s"] > 0


@pytest.mark.parametrize("query", ["window_s=x", "window_s=-1", "limit=1e9", "by=colour", "limit=nan"])
def test_a_wrong_question_about_requests_is_named(client: TestClient, query: str) -> None:
    answer = client.get(f"/system/v1/requests?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.split("=")[0]
