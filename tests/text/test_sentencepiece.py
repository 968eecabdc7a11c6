"""Compared with the sentencepiece library on models trained here, and on every kind of text."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from appliance.errors import BadModelFile, InvalidRequest
from appliance.formats.gguf import read_gguf
from appliance.text.gguf_tokenizer import tokenizer_from_gguf
from appliance.text.tokenizer import Tokenizer
from formats.gguf_builder import Value, write_gguf
from text.corpus import TEXTS
from text.sentencepiece_model import model_bytes, oracle, trained

KINDS = ("bpe", "unigram")


@cache
def processor(kind: str, adds_prefix: bool = True) -> SentencePieceProcessor:
    markup = ["<b>", "</b>", "\u2581\u2581", "\u2581\u2581\u2581", "\n", "\n\n"]
    model = trained(
        [line for text in TEXTS for line in text.splitlines() if line],
        kind,
        700,
        user_defined_symbols=markup,
        control_symbols=["<start>", "<end>"],
        add_dummy_prefix=adds_prefix,
    )
    return oracle(model)


def kind_of(model: SentencePieceProcessor, token_id: int) -> int:
    if model.is_unknown(token_id):
        return 2
    if model.is_control(token_id):
        return 3
    if model.is_byte(token_id):
        return 6
    is_user_defined = model.id_to_piece(token_id) in ("<b>", "</b>", "\n", "\n\n") or (
        set(model.id_to_piece(token_id)) == {"\u2581"} and len(model.id_to_piece(token_id)) in (2, 3)
    )
    return 4 if is_user_defined else 1


def metadata_of(model: SentencePieceProcessor, kind: str, adds_prefix: bool = True) -> dict[str, Value]:
    ids = range(model.get_piece_size())
    kinds = [kind_of(model, i) for i in ids]
    texts = [model.id_to_piece(i) for i in ids]
    return {
        "tokenizer.ggml.model": "llama" if kind == "bpe" else "t5",
        # A converter writes added tokens with plain spaces.
        "tokenizer.ggml.tokens": [
            t.replace("\u2581", " ") if k == 4 else t for t, k in zip(texts, kinds, strict=True)
        ],
        "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.add_space_prefix": adds_prefix,
        "tokenizer.ggml.add_bos_token": True,
    }


def tokenizer_of(folder: Path, metadata: dict[str, Value]) -> Tokenizer:
    return tokenizer_from_gguf(read_gguf(write_gguf(folder / "v.gguf", metadata, {})))


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Tokenizer:
    return tokenizer_of(tmp_path_factory.mktemp(kind), metadata_of(processor(kind), kind))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_the_librarys_on_a_corpus(tokenizer: Tokenizer, kind: str, text: str) -> None:
    assert tokenizer.encode(text, parse_special=False, add_bos=False) == processor(kind).encode(text)


@given(text=st.text(alphabet="the qu<b>/\n\u2581日é🤣0x", max_size=80))
def test_ids_equal_the_librarys_on_any_text(tokenizer: Tokenizer, kind: str, text: str) -> None:
    assert tokenizer.encode(text, parse_special=False, add_bos=False) == processor(kind).encode(text)


@given(text=st.text(alphabet="abcdehilnorst", min_size=100, max_size=300))
def test_one_long_word_is_cut_as_short_ones_are(tokenizer: Tokenizer, kind: str, text: str) -> None:
    ids, theirs = tokenizer.encode(text, parse_special=False, add_bos=False), processor(kind).encode(text)
    # Cuts of equal worth are unigram's to choose from: the library's float32 sums decide between them.
    assert ids == theirs or (kind == "unigram" and worth(ids) == pytest.approx(worth(theirs), rel=1e-5))


def worth(ids: list[int]) -> float:
    return sum(processor("unigram").get_score(piece) for piece in ids)


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, parse_special=False, add_bos=False)
    # A space is put before a text, and U+2581 stands for one.
    assert tokenizer.decode(ids) == (" " + text.replace("\u2581", " ") if text else "")


def test_text_never_becomes_a_control_token(tokenizer: Tokenizer) -> None:
    text = "<s><start>hi</s><unk><0x41><end>"
    plain = tokenizer.encode(text, parse_special=False, add_bos=False)
    assert not any(map(tokenizer.is_control, plain))
    assert tokenizer.decode(plain) == " " + text
    steering = [i for i in tokenizer.encode(text, parse_special=True) if tokenizer.is_control(i)]
    assert len(steering) == 5


def test_without_a_prefix_a_text_begins_as_it_is(tmp_path: Path, kind: str) -> None:
    model = processor(kind, False)
    tokenizer = tokenizer_of(tmp_path, metadata_of(model, kind, False))
    for text in TEXTS:
        ids = tokenizer.encode(text, parse_special=False, add_bos=False)
        assert ids == model.encode(text)
        assert tokenizer.decode(ids) == text.replace("\u2581", " ")


def test_a_bos_comes_first_where_the_file_says(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("", parse_special=False) == [tokenizer.bos_token_id]
    assert tokenizer.encode("<s>", parse_special=True) == [tokenizer.bos_token_id]


def test_a_piece_with_an_inner_space_joins_words(tmp_path: Path) -> None:
    texts = ["<unk>", ">", "\u2581", "<", "/", "\u2581<", "\u2581</", ">\u2581</", "a"]
    kinds, scores = [2, *[1] * 8], [0.0, -1, -2, -3, -4, -5, -6, -7, -8]
    library = oracle(model_bytes(texts, scores, kinds, adds_prefix=False))
    tokenizer = tokenizer_of(tmp_path, small_vocabulary(texts, scores, kinds))
    for text in ("> </", "a> </a", ">  </", "a </", "> <", ">> </> </"):
        assert tokenizer.encode(text, parse_special=False, add_bos=False) == library.encode(text)


def test_without_byte_tokens_unknown_characters_are_one_unknown_token(tmp_path: Path) -> None:
    texts, scores, kinds = ["<unk>", "a", "\u2581"], [0.0, -1.0, -2.0], [2, 1, 1]
    library = oracle(model_bytes(texts, scores, kinds, adds_prefix=False))
    tokenizer = tokenizer_of(tmp_path, small_vocabulary(texts, scores, kinds))
    for text in ("a日本 xa", "日", ""):
        assert tokenizer.encode(text, parse_special=False, add_bos=False) == library.encode(text)


def small_vocabulary(texts: list[str], scores: list[float], kinds: list[int]) -> dict[str, Value]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }


def test_a_lone_surrogate_is_the_clients_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer.encode("a\ud800b", parse_special=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.scores": [1.0]}, "has 1 entries and the vocabulary has 3"),
        ({"tokenizer.ggml.scores": [0.0, float("nan"), 0.0]}, "no number"),
        ({"tokenizer.ggml.scores": ["a", "b", "c"]}, "must be an array of numbers"),
        ({"tokenizer.ggml.token_type": [2, 6, 1]}, "the byte token 1 is 'a'"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(
    tmp_path: Path, change: dict[str, Value], message: str
) -> None:
    metadata = small_vocabulary(["<unk>", "a", "b"], [0.0, -1.0, -2.0], [2, 1, 1])
    with pytest.raises(BadModelFile, match=message):
        tokenizer_of(tmp_path, metadata | change)
