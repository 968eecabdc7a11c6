import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.text.stop_strings import StopMatcher


def streamed(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], bool]:
    """Return what each piece lets through, with the flush last, and whether the text was stopped."""
    matcher = StopMatcher(stops)
    emitted, is_stopped = [], False
    for piece in pieces:
        text, is_stopped = matcher.push(piece)
        emitted.append(text)
        if is_stopped:
            break
    return [*emitted, matcher.flush()], is_stopped


def naive(stops: tuple[str, ...], text: str) -> tuple[str, bool]:
    """Look at every beginning of the text in turn for one that ends in a stop string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(
    stops=st.lists(st.text(alphabet="ab\n", max_size=4), max_size=4).map(tuple),
    pieces=st.lists(st.text(alphabet="ab\nc", max_size=5), max_size=8),
)
def test_any_cutting_equals_the_search_in_the_whole(stops: tuple[str, ...], pieces: list[str]) -> None:
    emitted, is_stopped = streamed(stops, pieces)
    assert ("".join(emitted), is_stopped) == naive(stops, "".join(pieces))


@given(
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3).map(tuple),
    text=st.text(alphabet="abc", max_size=20),
)
def test_only_what_may_begin_a_stop_string_is_held_back(stops: tuple[str, ...], text: str) -> None:
    matcher = StopMatcher(stops)
    emitted, is_stopped = matcher.push(text)
    held = "" if is_stopped else text[len(emitted) :]
    assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_string_over_several_pieces_ends_the_text_before_it() -> None:
    emitted, is_stopped = streamed(("O P Q",), ["A B C", " O", " P", " Q", " R"])
    assert emitted == ["A B C", " ", "", "", ""]
    assert is_stopped


def test_no_part_of_a_stop_string_leaks() -> None:
    emitted, is_stopped = streamed(("own fox",), ["The quick br", "own", " fox", " jumps"])
    assert "".join(emitted) == "The quick br"
    assert is_stopped


def test_held_text_is_sent_once_it_cannot_be_a_stop_string() -> None:
    assert streamed(("own fox",), ["br", "own", " bear"]) == (["br", "", "own bear", ""], False)
    assert streamed(("own fox",), ["br", "own"]) == (["br", "", "own"], False)


@pytest.mark.parametrize("stops", [(), ("",), ("", "")])
def test_empty_stop_strings_are_ignored(stops: tuple[str, ...]) -> None:
    assert streamed(stops, ["pong", "!"]) == (["pong", "!", ""], False)


def test_the_first_piece_may_be_the_stop_string() -> None:
    assert streamed(("{",), ['{"v"']) == (["", ""], True)


def test_nothing_comes_after_a_stop() -> None:
    matcher = StopMatcher(("x",))
    assert matcher.push("axb") == ("a", True)
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""
