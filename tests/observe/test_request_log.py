"""The one line per finished request."""

import logging
from dataclasses import replace

import pytest

from appliance.observe.request_log import log_finished
from observe.test_request_ring import RECORD


def test_the_line_tells_sizes_times_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_finished(replace(RECORD, ttft_s=0.0123, tpot_s=0.05))
    (record,) = caplog.records
    assert record.getMessage() == "id-1 tiny prompt=5 output=7 ttft=12ms speed=20.0tok/s stop"
    assert record.output_tokens == 7
    assert record.tokens_per_s == pytest.approx(20)


def test_what_is_not_known_is_a_dash(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_finished(replace(RECORD, output_tokens=0, ttft_s=None, tpot_s=None, reason="client gone"))
    assert caplog.records[0].getMessage() == "id-1 tiny prompt=5 output=0 ttft=- speed=- client gone"
