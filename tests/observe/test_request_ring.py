"""Finished requests in bounded memory, and their histograms."""

from dataclasses import replace

import pytest

from appliance.observe.histogram import Histogram
from appliance.observe.request_record import RequestRecord
from appliance.observe.request_ring import RequestRing, percentiles_of

RECORD = RequestRecord(
    request_id="id-1",
    model="tiny",
    service_class="silver",
    reason="stop",
    ended_unix_s=100.0,
    prompt_tokens=5,
    output_tokens=7,
    prefix_hit_tokens=0,
    receive_s=0.001,
    parse_s=0.001,
    load_s=0.0,
    template_s=0.001,
    tokenize_s=0.002,
    grammar_s=0.0,
    queue_s=0.01,
    prefill_s=0.1,
    decode_s=0.6,
    longest_gap_s=0.2,
    detokenize_s=0.001,
    send_s=0.001,
    ttft_s=0.12,
    tpot_s=0.1,
    total_s=0.72,
)


def test_a_histogram_counts_up_to_and_with_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    reading = histogram.read()
    assert reading.buckets == ((1.0, 2), (2.0, 4), (float("inf"), 5))
    assert reading.total == 14.0


def test_the_ring_forgets_the_oldest_and_histograms_do_not() -> None:
    ring = RequestRing(capacity=3)
    for i in range(5):
        ring.add(replace(RECORD, request_id=f"id-{i}", ended_unix_s=float(i)))
    assert [record.request_id for record in ring.since(3.0)] == ["id-4", "id-3"]
    assert len(ring.since(0.0)) == 3
    assert ring.models()["tiny"].ttft.read().buckets[-1][1] == 5
    assert ring.models()["tiny"].ends == {"stop": 5}


def test_a_stage_that_was_not_reached_is_not_counted() -> None:
    ring = RequestRing()
    ring.add(replace(RECORD, ttft_s=None, prefill_s=None))
    assert ring.models()["tiny"].ttft.read().buckets[-1][1] == 0
    assert percentiles_of(ring.since(0), lambda record: record.ttft_s)[0] == 0


def test_many_names_of_models_share_one_place() -> None:
    ring = RequestRing()
    for i in range(100):
        ring.add(replace(RECORD, model=f"model-{i}"))
    assert len(ring.models()) == 65
    assert ring.models()["other"].ends["stop"] == 36


@pytest.mark.parametrize(
    ("num_tokens", "bucket"), [(0, "<=64"), (64, "<=64"), (65, "<=256"), (5000, "<=16384")]
)
def test_lengths_fall_into_powers_of_four(num_tokens: int, bucket: str) -> None:
    assert replace(RECORD, prompt_tokens=num_tokens).length_bucket == bucket
