"""From recorded arrivals to timings and percentiles, on a clock of the test's own."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.bench.exchange import Exchange, Target, read_timing
from appliance.bench.load_result import LoadResult
from appliance.bench.prompts import PromptMaker
from appliance.bench.request_timing import RequestTiming
from appliance.bench.response_decoder import ResponseDecoder
from bench.openai_stand_in import event, stream, tokens


def timing(*chunks: float, sent: float = 0.0, num_tokens: int | None = None) -> RequestTiming:
    return RequestTiming(
        sent_s=sent,
        chunk_times_s=chunks,
        ended_s=chunks[-1] if chunks else sent,
        num_prompt_tokens=None,
        num_output_tokens=len(chunks) if num_tokens is None else num_tokens,
    )


def test_text_is_timed_by_the_piece_that_completes_its_event() -> None:
    head, first, second, *rest = tokens(2, num_prompt_tokens=7)
    pieces = [(10.0, head + first[:9]), (11.0, first[9:] + second[:20]), (12.5, second[20:])]
    done = Exchange(sent_s=9.0, arrivals=(*pieces, (13.0, b"".join(rest))), ended_s=13.0)
    found = read_timing(done)
    assert found.error is None
    assert found.chunk_times_s == (11.0, 12.5)
    assert found.ttft_s == 2.0
    assert found.gaps_s == (1.5,)
    assert (found.num_prompt_tokens, found.num_output_tokens) == (7, 2)


def test_tokens_without_text_count_by_the_usage_but_not_as_chunks() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 5}
    pieces = stream(
        event({"choices": [{"text": "a"}]}),
        event({"choices": [{"text": ""}]}),
        event({"choices": [{"text": "b"}]}),
        event({"choices": [], "usage": usage}),
        event("[DONE]"),
    )
    found = read_timing(
        Exchange(sent_s=0.0, arrivals=tuple((float(i), p) for i, p in enumerate(pieces)), ended_s=9.0)
    )
    assert found.chunk_times_s == (1.0, 3.0)
    assert found.num_output_tokens == 5
    assert found.tpot_s == 0.5


def test_answer_without_usage_counts_its_chunks() -> None:
    pieces = stream(event({"choices": [{"text": "a"}]}), event({"choices": [{"text": "b"}]}), event("[DONE]"))
    found = read_timing(Exchange(sent_s=0.0, arrivals=((1.0, b"".join(pieces)),), ended_s=1.0))
    assert found.num_output_tokens == 2
    assert found.num_prompt_tokens is None


def test_one_token_has_a_first_token_time_and_no_time_per_token() -> None:
    assert timing(0.25).ttft_s == 0.25
    assert timing(0.25).tpot_s is None
    assert timing(0.25).gaps_s == ()


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(0, 2**32))
def test_decoder_gives_the_same_events_however_the_bytes_are_cut(cuts: list[int], seed: int) -> None:
    whole = b"".join(tokens(random.Random(seed).randint(1, 9), num_prompt_tokens=3))
    expected = ResponseDecoder().feed(whole)
    decoder, found, start = ResponseDecoder(), [], 0
    for size in (*cuts, len(whole)):
        found += decoder.feed(whole[start : start + size])
        start += size
    assert found == expected
    assert decoder.is_complete
    assert decoder.status == 200


def test_plain_body_is_read_as_well_as_a_chunked_one() -> None:
    decoder = ResponseDecoder()
    assert decoder.feed(b"HTTP/1.1 200 OK\r\n\r\ndata: a\r\n\r\nda") == [b"a"]
    assert decoder.feed(b"ta: b\n\n: ping\n\n") == [b"b"]


def test_answer_of_another_protocol_is_an_error_that_shows_it() -> None:
    done = Exchange(sent_s=0.0, arrivals=((1.0, b"SSH-2.0-x\r\n\r\n"),), ended_s=1.0)
    assert "SSH-2.0-x" in str(read_timing(done).error)


def test_percentiles_are_nearest_rank_over_requests_and_over_gaps() -> None:
    result = LoadResult(
        concurrency=2,
        sends_token_ids=True,
        timings=tuple(timing(float(i), i + 1.0, i + 3.0) for i in range(1, 101)),
    )
    assert result.ttft == (50.0, 95.0, 99.0)
    assert result.tpot == (1.5, 1.5, 1.5)
    assert result.itl == (1.0, 2.0, 2.0)
    assert result.max_gap_s == 2.0
    assert result.wall_s == 103.0
    assert result.output_tokens_per_s == pytest.approx(300 / 103)


def test_address_is_read_with_and_without_its_version_folder() -> None:
    for url in ("http://box:8080", "http://box:8080/", "http://box:8080/v1", "http://box:8080/v1/"):
        assert Target.parse(url, None).path == "/v1/completions"
    under_a_folder = Target.parse("https://box/llm/v1", None)
    assert under_a_folder.path == "/llm/v1/completions"
    assert (under_a_folder.port, under_a_folder.is_tls) == (443, True)


def test_prompt_of_words_has_the_length_that_the_server_counts() -> None:
    prompt = PromptMaker(num_tokens=90, tokens_per_word=1.5).make(random.Random(1))
    assert isinstance(prompt, str)
    assert len(prompt.split()) == 60
