"""Verdicts: a slowed stage is named, a step at a limit is bound by it, and what is unknown is not claimed."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from appliance.profiling.flame import speedscope
from appliance.profiling.model_profile import ModelProfile
from appliance.profiling.pages import roofline, to_html
from appliance.profiling.stage_clock import StageClock
from appliance.profiling.step_profile import StepProfile
from appliance.profiling.verdict import Limits, Traffic, Verdict, judge

STAGES = {
    "schedule": 0.1, "inputs": 0.1, "forward": 10.0, "sample": 0.1, "update": 0.1, "detokenize": 0.1,
    "encode chunk": 0.1,
}  # fmt: skip
STEP = StepProfile(batch=8, context=128, stages=STAGES, phases={"qkv": 3.0, "head": 5.0})
LIMITS = Limits(bytes_per_s=100.0, operations_per_s=1000.0)
WORK = Traffic(num_bytes=700.0, operations=1000.0)


@pytest.mark.parametrize(
    ("stage", "word"),
    [
        ("schedule", "launch-bound"), ("inputs", "launch-bound"), ("update", "launch-bound"),
        ("sample", "sampler-bound"), ("detokenize", "tokenizer-bound"), ("encode chunk", "tokenizer-bound"),
    ],
)  # fmt: skip
def test_a_slowed_stage_is_named(stage: str, word: str) -> None:
    verdict = judge(replace(STEP, stages=STAGES | {stage: 9.0}), WORK, LIMITS)
    assert verdict.words.startswith(word)
    assert f"'{stage}'" in verdict.words
    assert verdict.remedy


def test_a_step_at_a_limit_is_bound_by_it() -> None:
    memory = judge(STEP, WORK, LIMITS)
    assert memory.words == "memory-bound at 70% of the limit; the longest phase is 'head'"
    assert (memory.memory_share, memory.compute_share) == (0.7, pytest.approx(0.1))
    cached = judge(STEP, Traffic(num_bytes=1100, operations=1000), LIMITS)
    assert cached.words.startswith("memory-bound at 110% of the limit (caches hold a part of the weights)")
    compute = judge(STEP, Traffic(num_bytes=100, operations=8000), LIMITS)
    assert compute.words.startswith("compute-bound at 80% of the limit")


def test_a_step_far_from_every_limit_is_not_called_bound_by_one() -> None:
    assert judge(STEP, Traffic(num_bytes=100, operations=10), LIMITS).words.startswith(
        "nearest to memory, at 10%"
    )
    assert judge(STEP, Traffic(num_bytes=1, operations=2000), LIMITS).words.startswith(
        "nearest to compute, at 20%"
    )


def test_without_limits_no_share_is_claimed() -> None:
    verdict = judge(STEP, WORK, Limits())
    assert (verdict.memory_share, verdict.compute_share) == (None, None)
    assert "%" not in verdict.words
    assert judge(STEP, WORK, Limits(bytes_per_s=100.0)).compute_share is None


def test_the_flame_graph_adds_up_to_the_step() -> None:
    written = json.loads(json.dumps(speedscope("m", [STEP, replace(STEP, batch=1, phases={})])))
    first, second = written["profiles"]
    frames = [frame["name"] for frame in written["shared"]["frames"]]
    for drawn in (first, second):
        assert sum(drawn["weights"]) == pytest.approx(STEP.step_s)
        assert len(drawn["samples"]) == len(drawn["weights"])
        assert all(0 <= index < len(frames) for stack in drawn["samples"] for index in stack)
    names = [[frames[index] for index in stack[1:]] for stack in first["samples"]]
    assert ["forward", "head"] in names
    assert ["sample"] in names


@pytest.mark.parametrize("limits", [LIMITS, Limits(), Limits(bytes_per_s=5.0)])
def test_the_roofline_and_the_page_are_well_formed(limits: Limits) -> None:
    steps = tuple(
        (
            replace(STEP, batch=batch),
            Traffic(num_bytes=700, operations=100.0 * batch),
            judge(STEP, WORK, limits),
        )
        for batch in (1, 8, 32)
    )
    result = ModelProfile(
        backend_name="b",
        precision="p",
        limits=limits,
        limits_problem="",
        steps=steps,
        operators=(("<mm>", 3, 0.1),),
    )
    drawing = ET.fromstring(roofline(result, is_file=True))
    assert len(drawing.findall(".//{*}circle")) == 3
    text = to_html("<m>", result)
    assert "<m>" not in text
    assert "&lt;mm&gt;" in text
    assert "<script" not in text


def test_a_stage_clock_adds_up_and_counts_a_stage_that_fails() -> None:
    ticks = iter([0.0, 1.0, 5.0, 7.0, 10.0, 14.0])
    clock = StageClock(clock=lambda: next(ticks))
    for name in ("a", "b"):
        with clock.stage(name):
            pass
    with pytest.raises(KeyError), clock.stage("a"):
        raise KeyError
    assert clock.seconds == {"a": 5.0, "b": 2.0}


def test_a_verdict_always_has_a_remedy() -> None:
    assert isinstance(judge(STEP, WORK, LIMITS), Verdict)
    for limits in (LIMITS, Limits()):
        assert judge(STEP, WORK, limits).remedy
