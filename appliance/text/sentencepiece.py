"""Sentencepiece's kind of tokenizer: spaces are characters, unknown characters become bytes.

Knows normalization, words and ids; how a word is cut is its segmenter's.

The tokenizers library takes a second to build this from 260,000 pieces. Here a vocabulary is ready once it is
read, and words are remembered: text is quick, and one unbroken word takes n log n.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from appliance.formats.number_array import Numbers, falls
from appliance.text.byte_level import lone_surrogate
from appliance.text.literal_finder import LiteralFinder
from appliance.text.segmenters import LikeliestSegmenter, MergingSegmenter, Segmenter, by_piece
from appliance.text.vocabulary import TokenKind, Vocabulary

SPACE = "\u2581"  # stands for a space in every piece
_REMEMBERED_WORDS = 1 << 16
_LONGEST_REMEMBERED = 64
# Between texts that are searched as one; a noncharacter, so in no honest piece.
_BETWEEN = "\U0010ffff"


class SpacePrefix(Enum):
    """Where a space is put before a text."""

    NEVER = "never"
    FIRST = "first"  # where nothing precedes it, no added token either
    SEGMENT = "segment"  # at the start and after every control token
    PIECE = "piece"  # before every piece of text between added tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """What happens to a text before it is cut."""

    prefix: SpacePrefix = SpacePrefix.SEGMENT
    # Only where the text does not begin with a space.
    prefix_is_optional: bool = False
    removes_extra_spaces: bool = False
    # Added tokens are cut out of the text first; where not, the segmenter knows them as pieces.
    cuts_at_added: bool = True
    normalize: Callable[[str], str] = field(default=str)


class SentencePieceEncoder:
    """Encodes for one vocabulary; `segmenter` cuts words into its NORMAL pieces."""

    def __init__(
        self, vocabulary: Vocabulary, segmenter: Segmenter, rules: TextRules, words: str | None = None
    ) -> None:
        """`words` is the pattern of words where the model cuts before its segmenter sees them."""
        self._segmenter = segmenter
        self._rules = rules
        self._byte_ids = _byte_ids(vocabulary)
        self._unknown_id = vocabulary.unknown_token_id
        self._literal_ids = {spaced(text): i for text, i in vocabulary.user_defined.items()}
        self._literals = LiteralFinder(self._literal_ids if rules.cuts_at_added else ())
        ordinary = vocabulary.ordinary_ids
        self._ids = ordinary if rules.cuts_at_added else {**ordinary, **self._literal_ids}
        self._words = re.compile(words) if words else _word_pattern(vocabulary.texts)
        self._remembered: dict[str, list[int]] = {}

    def encode(self, text: str, *, is_first: bool) -> list[int]:
        """Return the ids of a text. Raises InvalidRequest for lone surrogates."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise lone_surrogate() from error
        prefix = self._rules.prefix
        ids: list[int] = []
        is_at_start = is_first
        for plain, literal in self._literals.split(self._prepared(text)):
            if prefix is SpacePrefix.PIECE or (prefix is SpacePrefix.FIRST and is_at_start):
                plain = self._prefixed(plain)
            is_at_start = False
            for word in self._words.findall(plain):
                ids += self._word_ids(word)
            if literal:
                ids.append(self._literal_ids[literal])
        return ids if self._byte_ids else self._fused(ids)

    def bytes_of(self, piece: str) -> bytes:
        return piece.replace(SPACE, " ").encode()

    def _prepared(self, text: str) -> str:
        text = self._rules.normalize(text)
        if self._rules.removes_extra_spaces:
            text = re.sub(" {2,}", " ", text).strip(" ")
        text = spaced(text)
        return self._prefixed(text) if self._rules.prefix is SpacePrefix.SEGMENT else text

    def _prefixed(self, text: str) -> str:
        is_there = self._rules.prefix_is_optional and text.startswith(SPACE)
        return SPACE + text if text and not is_there else text

    def _word_ids(self, word: str) -> list[int]:
        known = self._remembered.get(word)
        if known is not None:
            return known
        ids: list[int] = []
        for piece in self._segmenter.cut(word):
            token_id = self._ids.get(piece)
            ids += [token_id] if token_id is not None else self._spelt_out(piece)
        if len(word) <= _LONGEST_REMEMBERED:
            if len(self._remembered) >= _REMEMBERED_WORDS:
                self._remembered.clear()
            self._remembered[word] = ids
        return ids

    def _spelt_out(self, piece: str) -> list[int]:
        if self._byte_ids:
            return [self._byte_ids[byte] for byte in piece.encode()]
        return [] if self._unknown_id is None else [self._unknown_id]

    def _fused(self, ids: list[int]) -> list[int]:
        """Return the ids with each run of unknown tokens as one."""
        unknown = self._unknown_id
        return [i for n, i in enumerate(ids) if i != unknown or not n or ids[n - 1] != unknown]


def segmenter_of(vocabulary: Vocabulary, scores: Sequence[float] | Numbers, *, merges: bool) -> Segmenter:
    """Return the segmenter of a vocabulary with a score per token: merging, or along the likeliest path."""
    ordinary, is_normal = vocabulary.ordinary_ids, vocabulary.is_normal
    # As many as there are normal tokens, so no two of them have one text.
    if merges and len(ordinary) == is_normal.count(1) and falls(scores, is_normal):
        # The usual case: who has the lower id has the higher score, and a second large table is spared.
        return MergingSegmenter(by_piece(ordinary))
    by_text = {text: float(scores[i]) for text, i in ordinary.items()}
    if merges:  # the lowest first
        return MergingSegmenter(by_piece({text: -score for text, score in by_text.items()}))
    best = max(0.0, *by_text.values())
    # As the library has it, lengths in bytes; scores are logarithms, so this is -0.1 in honest models.
    added = {spaced(text): len(spaced(text).encode()) * best - 0.1 for text in vocabulary.user_defined}
    return LikeliestSegmenter(by_text, added)


def spaced(text: str) -> str:
    return text.replace(" ", SPACE)


def _byte_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the token of each byte, or nothing where not all of them exist."""
    found = {vocabulary.texts[i].upper(): i for i in vocabulary.ids_of(TokenKind.BYTE)}
    names = [f"<0X{byte:02X}>" for byte in range(256)]
    return [found[name] for name in names] if found.keys() >= set(names) else []


def _word_pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Match words between which no piece of the vocabulary reaches, so that they can be cut one by one.

    A word begins with its spaces. It goes on over a space only after a character that has a space after it in
    some piece, such as the first of ">▁</".
    """
    joined = spaced(_BETWEEN.join(texts))
    is_honest = joined.count(_BETWEEN) < len(texts)
    if is_honest:
        # Half of the pieces begin with a space, which says nothing; without those, splitting is quick.
        joined = joined.replace(_BETWEEN + SPACE, _BETWEEN)
    inner = {before[-1] for before in joined.split(SPACE)[:-1] if before}
    if is_honest:
        inner.discard(_BETWEEN)
    if not inner:
        return re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
    after = "".join(map(re.escape, sorted(inner)))
    return re.compile(f"{SPACE}*(?:[^{SPACE}]+|(?<=[{after}]){SPACE}+)+|{SPACE}+")
