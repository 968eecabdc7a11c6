"""One choice's text: however tokens cut it, what shows is the text up to a stop string."""

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.batch import TokenLogprobs
from appliance.server.output_text import OutputText
from appliance.server.text_events import DeltaEvent, TextDelta
from server.rig import TOKENIZER, byte_ids

SURE = TokenLogprobs(logprob=0.0, top=())


def run(data: bytes, stop: tuple[str, ...]) -> tuple[str, list[bytes], OutputText]:
    text = OutputText(TOKENIZER, stop)
    events: list[DeltaEvent] = []
    for token_id in byte_ids(data):
        events += text.push(token_id, SURE)
        if text.is_stopped:
            break
    events += text.flush()
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert deltas == events
    tokens = [TOKENIZER.token_bytes(detail.token_id) for delta in deltas for detail in delta.tokens]
    return "".join(delta.text for delta in deltas), tokens, text


@settings(deadline=None)
@given(
    st.text(alphabet="ab🌶é", max_size=12),
    st.lists(st.text(alphabet="ab🌶é", min_size=1, max_size=3), max_size=3),
)
def test_text_ends_before_the_first_complete_stop_string(text: str, stop: list[str]) -> None:
    shown, tokens, state = run(text.encode(), tuple(stop))
    ends = [text.find(s) + len(s) for s in stop if s in text]
    assert state.is_stopped == bool(ends)
    if not ends:
        assert shown == text
    else:
        assert all(s not in shown for s in stop)
        assert text.startswith(shown)
    assert b"".join(tokens) == shown.encode()


def test_a_character_cut_off_at_the_end_is_replaced() -> None:
    shown, tokens, _ = run(b"a\xf0\x9f\x8c", ())
    assert shown == "a\ufffd"
    assert len(tokens) == 4


def test_text_that_may_begin_a_stop_string_waits() -> None:
    text = OutputText(TOKENIZER, ("bc",))
    assert text.push(*byte_ids(b"a"), None) == [TextDelta(index=0, text="a")]
    assert text.push(*byte_ids(b"b"), None) == []
    assert text.push(*byte_ids(b"x"), None) == [TextDelta(index=0, text="bx")]
