"""A tokenizer.json read once is read from the cache, and never from a cache that is not what was written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from appliance.errors import BadModelFile
from appliance.formats.hf_folder import read_hf_folder
from appliance.text import tokenizer_cache
from appliance.text.model_text import read_tokenizer
from appliance.text.tokenizer import Tokenizer
from appliance.text.tokenizer_cache import read_tokenizer_json
from formats.safetensors_builder import write_hf_folder
from text.corpus import TEXTS

SPACE = "\u2581"
# Several ways to one piece, and ranks that lengths do not tell: "bc" before "ab", "a|bc" before "ab|c".
MERGES = [["b", "c"], ["a", "b"], ["a", "bc"], ["c", "a"], ["ab", "c"], ["abc", "abc"], ["bc", "a"]]
PIECES = ["<unk>", "<s>", "a", "b", "c", SPACE, *dict.fromkeys(left + right for left, right in MERGES)]


def bpe(**changes: Any) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "unk_token": "<unk>",
        "vocab": {piece: i for i, piece in enumerate(PIECES)},
        "merges": MERGES,
    }
    return {
        "added_tokens": [{"id": 1, "content": "<s>", "special": True}],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "model": model | changes,
    }


def unigram() -> dict[str, Any]:
    pieces = [["<unk>", 0.0], ["a", -2.0], ["b", -2.5], ["ab", -1.0], [SPACE, -3.0]]
    return bpe(type="Unigram", vocab=pieces, unk_id=0, merges=None)


def write(path: Path, tokenizer: dict[str, Any]) -> Path:
    if not path.exists():
        write_hf_folder(path, {"eos_token_id": 1}, {"w": np.ones(1, np.float32)}, others={})
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def open_tokenizer(path: Path, cache: Path | None) -> Tokenizer:
    return read_tokenizer(read_hf_folder(path), cache)


def kept_file(cache: Path) -> Path:
    (file,) = cache.iterdir()
    return file


@pytest.mark.parametrize("content", [bpe(), bpe(merges=[" ".join(pair) for pair in MERGES]), unigram()])
def test_the_second_opening_gives_the_same_without_the_json(
    tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = write(tmp_path / "model", content), tmp_path / "cache"
    first = open_tokenizer(path, cache)
    monkeypatch.setattr(tokenizer_cache.TokenizerJson, "parse", None)
    second = open_tokenizer(path, cache)
    for text in (*TEXTS, "abcabc aabbcc cab bca", "<s>ab"):
        assert first.encode(text, parse_special=True) == second.encode(text, parse_special=True)
    assert second.bos_token_id == first.bos_token_id
    assert second.stop_token_ids == first.stop_token_ids == {1}
    assert [second.token_bytes(i) for i in range(second.vocab_size)] == [
        first.token_bytes(i) for i in range(first.vocab_size)
    ]


def test_byte_level_files_are_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Library(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    path, cache = write(tmp_path / "model", json.loads(made.to_str())), tmp_path / "cache"
    first = open_tokenizer(path, cache)
    monkeypatch.setattr(tokenizer_cache.TokenizerJson, "parse", None)
    assert open_tokenizer(path, cache).encode("añ", parse_special=False) == first.encode(
        "añ", parse_special=False
    )


def test_merges_are_those_of_the_library_where_a_piece_can_be_made_in_two_ways(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(write(tmp_path / "model", bpe()), None)
    vocab = {piece: i for i, piece in enumerate(PIECES)}
    library = Library(models.BPE(vocab=vocab, merges=[(left, right) for left, right in MERGES]))
    library.normalizer = normalizers.Replace(" ", SPACE)
    rng = np.random.default_rng(0)
    for _ in range(300):
        text = "".join(rng.choice(list("abc "), rng.integers(1, 80)))
        assert tokenizer.encode(text, parse_special=False, add_bos=False) == library.encode(text).ids, text


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "model", bpe()), tmp_path / "cache"
    before = open_tokenizer(path, cache).encode("abc", parse_special=False)
    write(path, bpe(merges=MERGES[:2]))
    after = open_tokenizer(path, cache).encode("abc", parse_special=False)
    assert len(before) < len(after)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("place", [0, 5, 20, 60, -1])
def test_a_damaged_cache_file_is_not_believed_and_made_again(tmp_path: Path, place: int) -> None:
    path, cache = write(tmp_path / "model", bpe()), tmp_path / "cache"
    expected = open_tokenizer(path, cache).encode("abcabc", parse_special=False)
    file = kept_file(cache)
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[place] ^= 1
    file.write_bytes(damaged)
    assert open_tokenizer(path, cache).encode("abcabc", parse_special=False) == expected
    assert file.read_bytes() == whole


@pytest.mark.parametrize("num_bytes", [0, 3, 40, 100, -1])
def test_a_cache_file_that_is_cut_off_is_made_again(tmp_path: Path, num_bytes: int) -> None:
    path, cache = write(tmp_path / "model", bpe()), tmp_path / "cache"
    open_tokenizer(path, cache)
    file = kept_file(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[:num_bytes])
    open_tokenizer(path, cache)
    assert file.read_bytes() == whole


def test_every_changed_byte_of_a_body_is_refused_or_gives_tables_that_hold() -> None:
    found = tokenizer_cache.TokenizerJson.parse(json.dumps(bpe()).encode())
    body = tokenizer_cache.pack(found)
    assert body is not None
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]
        try:
            tables = tokenizer_cache.unpack(changed).tables
        except tokenizer_cache.DAMAGE:
            continue
        assert len(tables.texts) == len(tables.kinds)
        assert tables.merges is None or tables.merges.is_whole(len(tables.texts))


def test_what_cannot_be_kept_is_read_each_time(tmp_path: Path) -> None:
    content = bpe()
    content["added_tokens"].append({"id": 30, "content": "a\U0010ffffb"})
    for name, odd in (("between", content), ("surrogate", bpe(note="\ud800"))):
        path = write(tmp_path / name, odd)
        assert open_tokenizer(path, tmp_path / f"{name}-cache").encode("abc", parse_special=False)
    assert not (tmp_path / "between-cache").exists()


def test_a_folder_that_cannot_be_made_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    path = write(tmp_path / "model", bpe())
    assert open_tokenizer(path, tmp_path / "cache").encode("abc", parse_special=False)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for number in range(tokenizer_cache.MOST_FILES + 3):
        read_tokenizer_json(json.dumps(bpe(note=number)).encode(), tmp_path)
    assert len(list(tmp_path.iterdir())) == tokenizer_cache.MOST_FILES


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        ([["a", "a"]], "makes 'aa', which is not in the vocabulary"),
        ([["a", "b", "c"]], "no pair of texts"),
        (["a  b"], "no pair of texts"),
        ([["a", 3]], "no pair of texts"),
        ([3], "no pair of texts"),
    ],
)
def test_merges_that_are_none_are_refused(merges: list[Any], message: str) -> None:
    with pytest.raises(BadModelFile, match=message):
        read_tokenizer_json(json.dumps(bpe(merges=merges)).encode(), None)
