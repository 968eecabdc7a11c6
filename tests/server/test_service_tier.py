"""Service tiers, a request's own deadline, and its place in the queue, over HTTP."""

import json
from typing import Any

import pytest

from appliance.engine.sequence import SamplingParams, ServiceClass
from appliance.server.appliance_state import ServerLimits
from server.rig import make_rig, wait_for

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


@pytest.mark.parametrize(
    ("tier", "served", "service_class"),
    [
        ("auto", "default", ServiceClass.SILVER),
        ("default", "default", ServiceClass.SILVER),
        ("priority", "priority", ServiceClass.GOLD),
        ("flex", "flex", ServiceClass.BRONZE),
    ],
)
def test_a_tier_is_served_as_its_class_and_echoed(
    tier: str, served: str, service_class: ServiceClass
) -> None:
    with make_rig(step_s=0.02) as rig, rig.client() as client:
        seen: list[ServiceClass] = []
        rig.runner.fail = lambda _: seen.extend(s.service_class for s in rig.scheduler.live_sequences())
        answer = client.post(CHAT, json=chat(service_tier=tier)).json()
        assert answer["service_tier"] == served
        assert set(seen) == {service_class}
        text = client.post(COMPLETIONS, json={"prompt": "a", "service_tier": tier}).json()
        assert text["service_tier"] == served
        streamed = client.post(CHAT, json=chat(service_tier=tier, stream=True)).text
        chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        assert {chunk["service_tier"] for chunk in chunks} == {served}
        rig.wait_idle()


def test_without_a_tier_none_is_told() -> None:
    with make_rig() as rig, rig.client() as client:
        assert "service_tier" not in client.post(CHAT, json=chat()).json()


def test_an_unknown_tier_is_refused_by_name() -> None:
    with make_rig() as rig, rig.client() as client:
        response = client.post(CHAT, json=chat(service_tier="platinum"))
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == "service_tier"
        assert "platinum" in error["message"]
        assert "priority" in error["message"]


def test_an_answer_that_is_not_done_in_time_is_what_there_is_by_then() -> None:
    with make_rig(step_s=0.05) as rig, rig.client() as client:
        rig.reply("a", ends=False)
        answer = client.post(CHAT, json=chat(deadline=0.5)).json()
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "deadline"
        assert len(choice["message"]["content"]) == answer["usage"]["completion_tokens"] > 0
        rig.wait_idle()


def test_a_deadline_of_nothing_is_refused() -> None:
    with make_rig() as rig, rig.client() as client:
        response = client.post(CHAT, json=chat(deadline=0))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "deadline"


def test_a_stream_that_waits_tells_its_place_in_the_queue() -> None:
    limits = ServerLimits(ping_interval_s=0.05)
    with make_rig(max_sequences=1, step_s=0.02, limits=limits) as rig, rig.client() as client:
        rig.reply("a", ends=False)
        running = rig.engine.submit([70], SamplingParams())
        wait_for(lambda: rig.engine.snapshot().num_running == 1)
        ahead = rig.engine.submit([71], SamplingParams(max_tokens=1))
        with client.stream("POST", CHAT, json=chat(stream=True, max_tokens=2)) as response:
            lines = response.iter_lines()
            assert next(lines) == ": queued 2 of 2"
            ahead.cancel()
            running.cancel()
            rest = list(lines)
        assert "data: [DONE]" in rest
        rig.wait_idle()
