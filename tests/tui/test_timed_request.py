import msgspec
import pytest

from appliance.observe.request_record import STAGES
from appliance.server.schemas import RequestStages
from tui.timed_request import TimedRequest


def record_ended_by(reason: str) -> RequestStages:
    return RequestStages(
        request_id="chatcmpl-0123456789",
        model="m",
        service_class="silver",
        reason=reason,
        ended_unix_s=0.0,
        prompt_tokens=7,
        output_tokens=5,
        prefix_hit_tokens=0,
        receive_s=0.25,
        parse_s=0.0625,
        load_s=0.0,
        template_s=0.25,
        tokenize_s=0.1875,
        grammar_s=0.0,
        queue_s=1.0,
        prefill_s=None,
        decode_s=None,
        longest_gap_s=None,
        detokenize_s=0.0,
        send_s=0.125,
        ttft_s=None,
        tpot_s=0.5,
        total_s=2.0,
    )


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("stop", "ended"),
        ("length,stop", "ended"),
        ("deadline", "ended"),
        ("client gone", "left"),
        ("error,stop", "failed"),
        ("failed", "failed"),
    ],
)
def test_what_ended_badly_says_so(reason: str, status: str) -> None:
    assert TimedRequest(record_ended_by(reason)).status == status


def test_stages_follow_one_another_and_those_not_reached_are_left_out() -> None:
    request = TimedRequest(record_ended_by("stop"))
    assert (request.id, request.key, request.output_tokens_per_s) == ("56789", "chatcmpl-0123456789", 2.0)
    assert [(stage.name, stage.start_s, stage.text) for stage in request.stages] == [
        ("receive", 0.0, "250 ms"),
        ("parse", 0.25, "62.5 ms"),
        ("template", 0.3125, "250 ms"),
        ("tokenize", 0.5625, "188 ms"),
        ("queue", 0.75, "1.00 s"),
        ("detokenize", 1.75, "0.00 ms"),
        ("send", 1.75, "125 ms"),
    ]


def test_every_stage_that_the_appliance_times_is_shown_in_its_order() -> None:
    fields = {f"{name}_s": 1.0 for name in STAGES}
    record = msgspec.structs.replace(record_ended_by("stop"), **fields)
    assert tuple(stage.name for stage in TimedRequest(record).stages) == STAGES
