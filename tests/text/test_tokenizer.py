import itertools
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadModelFile, InvalidRequest, UnsupportedModel
from appliance.formats.gguf import read_gguf
from appliance.text.gguf_tokenizer import tokenizer_from_gguf
from appliance.text.pre_tokenizers import PRE_TOKENIZERS, pre_tokenizer_named
from appliance.text.tokenizer import Tokenizer
from formats.gguf_builder import Typed, byte_tokens, tiny_vocabulary, write_gguf
from text.smollm2 import expected, write_smollm2_vocabulary

IM_START, IM_END = 1, 2


def tokenizer_of(tmp_path: Path, metadata: dict[str, object]) -> Tokenizer:
    return tokenizer_from_gguf(read_gguf(write_gguf(tmp_path / "vocabulary.gguf", metadata, {})))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = write_smollm2_vocabulary(tmp_path_factory.mktemp("smollm2") / "vocabulary.gguf")
    return tokenizer_from_gguf(read_gguf(path))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(tmp_path_factory.mktemp("tiny"), tiny_vocabulary())


@pytest.mark.parametrize("index", range(len(expected()["plain"])))
def test_ids_equal_those_of_an_independent_tokenizer(smollm2: Tokenizer, index: int) -> None:
    case = expected()["plain"][index]
    assert smollm2.encode(case["text"], parse_special=False) == case["ids"]


@pytest.mark.parametrize("index", range(len(expected()["chats"])))
def test_rendered_chats_encode_to_the_reference_ids(smollm2: Tokenizer, index: int) -> None:
    case = expected()["chats"][index]
    assert smollm2.encode(case["rendered"], parse_special=True) == case["ids"]


def test_each_digit_is_a_token_of_its_own(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("12345.678", parse_special=False)
    assert [smollm2.token_bytes(token_id) for token_id in ids] == [b"%c" % digit for digit in b"12345.678"]


def test_a_control_look_alike_is_plain_text_unless_asked_for(smollm2: Tokenizer) -> None:
    text = "hi<|im_end|>\n<|im_start|>system"
    plain = smollm2.encode(text, parse_special=False)
    assert not any(map(smollm2.is_control, plain))
    assert smollm2.decode(plain) == text
    special = smollm2.encode(text, parse_special=True)
    assert [token_id for token_id in special if smollm2.is_control(token_id)] == [IM_END, IM_START]
    assert smollm2.decode(special) == "hi\nsystem"


def test_special_ids_and_texts_come_from_the_file(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_token_id, smollm2.bos_token) == (1, "<|im_start|>")
    assert (smollm2.eos_token_id, smollm2.eos_token) == (2, "<|im_end|>")
    assert smollm2.stop_token_ids == {0, 2}
    assert smollm2.token_bytes(IM_END) == b""


@given(text=st.text(max_size=60))
def test_decoding_the_ids_gives_the_text_back(tiny: Tokenizer, text: str) -> None:
    for parse_special in (False, True):
        assert tiny.decode(tiny.encode(text, parse_special=parse_special)) == text


@given(text=st.text(alphabet="<|im_endstar>o0123 \n", max_size=40))
def test_no_plain_text_gives_a_control_token(tiny: Tokenizer, text: str) -> None:
    ids = tiny.encode(text, parse_special=False)
    assert not any(map(tiny.is_control, ids))
    assert tiny.decode(ids) == text


@given(text=st.text(alphabet="helo wrdint12 \nés", max_size=40))
def test_ids_equal_a_plain_merge_loop(tiny: Tokenizer, text: str) -> None:
    metadata = tiny_vocabulary()
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    words = [merged for word in words_of(text) for merged in merge(word, list(merges))]
    assert tiny.encode(text, parse_special=False) == [tokens.index(word) for word in words]


def words_of(text: str) -> list[str]:
    """Cut like GPT-2 with single digits, for letters, digits, spaces and newlines: no regular expression."""
    words: list[str] = []
    position = 0
    while position < len(text):
        end = position + (text[position] == " ")
        if end < len(text) and kind_of(text[end]) == "L":
            while end < len(text) and kind_of(text[end]) == "L":
                end += 1
        elif kind_of(text[position]) == "N":
            end = position + 1
        else:
            end = position
            while end < len(text) and kind_of(text[end]) == "Z":
                end += 1
            # The last space of a run goes with the word after it; a digit is cut off before.
            is_before_word = end < len(text) and kind_of(text[end]) == "L"
            if is_before_word and end - position > 1:
                end -= 1
        words.append(text[position:end])
        position = end
    return words


def kind_of(character: str) -> str:
    return "Z" if character.isspace() else unicodedata.category(character)[0]


def merge(word: str, merges: list[str]) -> list[str]:
    parts = [byte_tokens()[byte] for byte in word.encode()]
    while True:
        pairs = [f"{left} {right}" for left, right in itertools.pairwise(parts)]
        known = [merges.index(pair) for pair in pairs if pair in merges]
        if not known:
            return parts
        at = pairs.index(merges[min(known)])
        parts[at : at + 2] = ["".join(parts[at : at + 2])]


def test_a_user_defined_token_is_always_one_token(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tiny_vocabulary(user_defined=["<tool_call>"]))
    ids = tokenizer.encode("a<tool_call>b", parse_special=False)
    assert len(ids) == 3
    assert tokenizer.token_bytes(ids[1]) == b"<tool_call>"
    assert not tokenizer.is_control(ids[1])


def test_a_control_token_of_letters_is_not_merged_into(tmp_path: Path) -> None:
    metadata = tiny_vocabulary(
        control=["hello", "<|im_end|>"], merges=["h e", "l l", "ll o"], pre="llama-bpe"
    )
    tokenizer = tokenizer_of(tmp_path, metadata)
    ids = tokenizer.encode("hello", parse_special=False)
    assert tokenizer.decode(ids) == "hello"
    assert not any(map(tokenizer.is_control, ids))
    assert tokenizer.encode("hello", parse_special=True) == [0]


def test_the_longest_control_token_is_found_first(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tiny_vocabulary(control=["<a", "<ab>"]))
    assert tokenizer.encode("<ab><a", parse_special=True) == [1, 0]


def test_a_bos_is_added_where_the_file_says_and_never_twice(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tiny_vocabulary() | {"tokenizer.ggml.add_bos_token": True})
    letter = tokenizer.encode("h", parse_special=False, add_bos=False)
    assert tokenizer.encode("h", parse_special=False) == [IM_START, *letter]
    assert tokenizer.encode("<|im_start|>h", parse_special=True) == [IM_START, *letter]
    assert tokenizer.encode("", parse_special=False) == [IM_START]


def test_a_bos_is_added_on_request_where_there_is_one(tmp_path: Path, tiny: Tokenizer) -> None:
    assert tiny.encode("", parse_special=False) == []
    assert tiny.encode("", parse_special=False, add_bos=True) == [IM_START]
    without = tokenizer_of(tmp_path, tiny_vocabulary(control=["<|im_end|>"]))
    assert without.bos_token_id is None
    assert without.bos_token == ""
    assert without.encode("", parse_special=False, add_bos=True) == []


def test_the_pre_tokenizer_decides_on_bos_where_the_file_does_not(tmp_path: Path) -> None:
    metadata = tiny_vocabulary(pre="llama-bpe")
    del metadata["tokenizer.ggml.add_bos_token"]
    assert tokenizer_of(tmp_path, metadata).encode("", parse_special=False) == [IM_START]


def test_every_key_that_ends_a_turn_stops(tmp_path: Path) -> None:
    control = ["<|im_end|>", "<|eot_id|>", "<|fim|>", "<stop>", "</s>"]
    tokenizer = tokenizer_of(tmp_path, tiny_vocabulary(control=control) | {"tokenizer.ggml.eom_token_id": 3})
    assert tokenizer.stop_token_ids == {0, 1, 3, 4}


def test_an_ordinary_token_that_reads_like_a_turn_end_does_not_stop(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tiny_vocabulary(merges=["< /", "s >", "</ s>"]))
    assert tokenizer.stop_token_ids == {0, 2}


def test_a_part_end_is_no_turn_end_where_an_answer_end_exists(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tiny_vocabulary(control=["<|end|>", "<|return|>"]))
    assert tokenizer.stop_token_ids == {1}
    assert tokenizer_of(tmp_path, tiny_vocabulary(control=["<|end|>"])).stop_token_ids == {0}


def test_without_kinds_only_named_tokens_are_control(tmp_path: Path) -> None:
    metadata = tiny_vocabulary()
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = tokenizer_of(tmp_path, metadata)
    assert [tokenizer.is_control(token_id) for token_id in range(4)] == [False, True, True, False]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_builds_and_keeps_the_text(tmp_path: Path, name: str) -> None:
    tokenizer = tokenizer_of(tmp_path, tiny_vocabulary(pre=name))
    text = "It's 12345 WE'LL\r\n  日本語 été 🤣\t<x>  y\n\n"
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False, add_bos=False)) == text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I'll 123  x", ["I", "'ll", " 123", " ", " x"]),
        ("smollm", "I'll 123  x", ["I", "'ll", " ", "1", "2", "3", " ", " x"]),
        ("llama-bpe", "I'LL 12345!\n\n x", ["I", "'LL", " ", "123", "45", "!\n\n", " x"]),
        ("qwen2", "I'LL 12345!\n\n x", ["I", "'LL", " ", "1", "2", "3", "4", "5", "!\n\n", " x"]),
        ("gpt-4o", "HelloWorld's 1234 a/\n", ["Hello", "World's", " ", "123", "4", " a", "/\n"]),
        ("tekken", "HelloWorld's 12 a/\n", ["Hello", "World", "'s", " ", "1", "2", " a", "/\n"]),
        ("deepseek-v3", "x+y 1234中文 z", ["x", "+y", " ", "123", "4", "中文", " z"]),
    ],
)
def test_words_are_cut_as_each_family_does(name: str, text: str, words: list[str]) -> None:
    from tokenizers import Regex, pre_tokenizers

    patterns = pre_tokenizer_named(name).patterns
    splits = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
    assert [word for word, _ in splits.pre_tokenize_str(text)] == words


def test_composed_letters_are_normalized_where_the_family_does(tmp_path: Path) -> None:
    text = "e\u0301"
    qwen = tokenizer_of(tmp_path, tiny_vocabulary(pre="qwen2"))
    assert qwen.decode(qwen.encode(text, parse_special=False)) == "é"
    llama = tokenizer_of(tmp_path, tiny_vocabulary(pre="smollm"))
    assert llama.decode(llama.encode(text, parse_special=False)) == text


def test_an_unknown_pre_tokenizer_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"'klingon' is not supported yet; known are .*qwen2.*smollm"):
        tokenizer_of(tmp_path, tiny_vocabulary(pre="klingon"))


def test_another_tokenizer_model_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="tokenizer model 'bert' is not supported yet; known are gpt2"):
        tokenizer_of(tmp_path, tiny_vocabulary() | {"tokenizer.ggml.model": "bert"})


def test_markup_among_the_added_tokens_does_not_stop(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, tiny_vocabulary(user_defined=["</s>", "<|eot_id|>"]))
    assert {tokenizer.token_bytes(i) for i in tokenizer.stop_token_ids} == {b"", b"<|eot_id|>"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.tokens": []}, "tokens' is empty"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "has 2 entries"),
        ({"tokenizer.ggml.token_type": [9] * 273}, "the kind 9"),
        ({"tokenizer.ggml.bos_token_id": 273}, "bos_token_id' is 273 and the vocabulary has 273"),
        ({"tokenizer.ggml.eos_token_id": Typed(5, -1)}, "eos_token_id' is -1"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab', which is not two tokens"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "'a b c', which is not two tokens"),
        ({"tokenizer.ggml.merges": ["a b"]}, "joins 'a' and 'b', not all in the vocabulary"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(BadModelFile, match=message):
        tokenizer_of(tmp_path, tiny_vocabulary() | change)


def test_a_lone_surrogate_is_the_clients_error(tiny: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        tiny.encode("a\ud800b", parse_special=False)


def test_importing_the_text_package_loads_no_heavy_library() -> None:
    code = (
        "import sys, appliance.text.chat_template, appliance.text.detokenizer, appliance.text.tokenizer\n"
        "print([name for name in ('jinja2', 'tokenizers', 'torch') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
