import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.formats.gguf import read_gguf
from appliance.text.detokenizer import Detokenizer
from appliance.text.gguf_tokenizer import tokenizer_from_gguf
from appliance.text.tokenizer import Tokenizer
from formats.gguf_builder import tiny_vocabulary, write_gguf

FIRST_BYTE = 3  # the id of byte 0 in the tiny vocabulary


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = write_gguf(tmp_path_factory.mktemp("tiny") / "v.gguf", tiny_vocabulary(), {})
    return tokenizer_from_gguf(read_gguf(path))


def pushed(tokenizer: Tokenizer, data: bytes) -> list[str]:
    """Return what each byte, as a token of its own, gives, and then the flush."""
    detokenizer = Detokenizer(tokenizer)
    return [*[detokenizer.push(FIRST_BYTE + byte) for byte in data], detokenizer.flush()]


@pytest.mark.parametrize(
    "text", ["🌶️你好ďábel🤣", "x🏳️‍🌈 👩🏽‍💻 e\u0301x ❤️", " hello world", "\ufeffa\ufffd", ""]
)
def test_no_part_of_a_character_is_ever_sent(tokenizer: Tokenizer, text: str) -> None:
    pieces = pushed(tokenizer, text.encode())
    assert "".join(pieces) == text
    assert all(len(piece) <= 1 for piece in pieces)
    assert "\ufffd" not in "".join(pieces).replace("\ufffd" * text.count("\ufffd"), "")


@given(data=st.binary(max_size=24))
def test_any_bytes_equal_the_decoding_of_the_whole(tokenizer: Tokenizer, data: bytes) -> None:
    assert "".join(pushed(tokenizer, data)) == data.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"\xf0", ["", "\ufffd"]),
        (b"\xf0 a", ["", "\ufffd ", "a", ""]),
        (b"\xf0\x9f\xf0\x9f\x8c\xb6", ["", "", "\ufffd", "", "", "🌶", ""]),
        (b"\x8c\xb6a", ["\ufffd", "\ufffd", "a", ""]),
        (b"\xffa", ["\ufffd", "a", ""]),
    ],
)
def test_bytes_that_are_no_text_become_replacement_characters(
    tokenizer: Tokenizer, data: bytes, pieces: list[str]
) -> None:
    assert pushed(tokenizer, data) == pieces


def test_control_tokens_have_no_text_and_split_no_character(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    first, second = "é".encode()
    pieces = [detokenizer.push(token_id) for token_id in (FIRST_BYTE + first, 1, 2, FIRST_BYTE + second)]
    assert pieces == ["", "", "", "é"]


def test_a_leading_space_is_kept(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" world the", parse_special=False)
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token_id) for token_id in ids] == [" world", " the"]
    assert detokenizer.flush() == ""
