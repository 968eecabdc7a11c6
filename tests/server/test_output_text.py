"""One choice's text: however tokens cut it, what shows is the text up to a stop string."""

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.batch import TokenLogprobs
from appliance.server.output_text import OutputText
from server.rig import TOKENIZER, byte_ids

SURE = TokenLogprobs(logprob=0.0, top=())


def run(data: bytes, stop: tuple[str, ...]) -> tuple[str, list[bytes], OutputText]:
    text = OutputText(TOKENIZER, stop)
    shown, tokens = "", []
    for token_id in byte_ids(data):
        part, details = text.push(token_id, SURE)
        shown += part
        tokens += [TOKENIZER.token_bytes(detail.token_id) for detail in details]
        if text.is_stopped:
            break
    part, details = text.flush()
    tokens += [TOKENIZER.token_bytes(detail.token_id) for detail in details]
    return shown + part, tokens, text


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
    assert text.push(*byte_ids(b"a"), None) == ("a", ())
    assert text.push(*byte_ids(b"b"), None) == ("", ())
    assert text.push(*byte_ids(b"x"), None) == ("bx", ())
