"""Reads a Hugging Face `tokenizer.json`: which algorithm, which rules, which tokens. Knows no folder.

Byte-level BPE runs on the tokenizers library, which the file was written by. Sentencepiece's kind (spaces as
U+2581, bytes for unknown characters) runs on our own encoder, which opens a large vocabulary several times
faster. Anything else is refused by name: a tokenizer that is nearly right gives nearly right answers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.formats.json_file import Json
from appliance.text.byte_level import ByteLevelEncoder
from appliance.text.piece_encoder import PieceEncoder
from appliance.text.segmenters import MergingSegmenter
from appliance.text.sentencepiece import SPACE, SentencePieceEncoder, SpacePrefix, TextRules, segmenter_of
from appliance.text.vocabulary import BYTE_TOKEN, TokenKind, Vocabulary

MAX_TOKENIZER_BYTES = 128 << 20
_MAX_TOKENS = 1 << 22
_ANY_SPACES = f"{SPACE}[^{SPACE}]*|[^{SPACE}]+"  # every space begins a word


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """An entry of `added_tokens`."""

    token_id: int
    text: str
    is_special: bool
    strips_left: bool = False
    strips_right: bool = False


class TokenizerJson:
    """A parsed file. Raises BadModelFile where it contradicts itself."""

    def __init__(self, content: Json) -> None:
        self._content = content
        self._model = _object(content.get("model"), "model")
        self.added = tuple(_added(item) for item in content.get("added_tokens") or [])

    def texts_and_kinds(self) -> tuple[tuple[str, ...], bytes]:
        """Return each token's text and kind by id; ids that nothing has are unused."""
        vocab = self._model.get("vocab")
        if isinstance(vocab, list):  # a unigram model: pieces with scores
            # From the last to the first: the first of equal pieces counts.
            vocab = {str(item[0]): i for i, item in reversed(list(enumerate(vocab)))}
        ids = {**_object(vocab, "model.vocab"), **{token.text: token.token_id for token in self.added}}
        if not ids or not all(type(i) is int and 0 <= i < _MAX_TOKENS for i in ids.values()):
            raise _bad(f"'model.vocab' must give ids from 0 to {_MAX_TOKENS}")
        texts = [""] * (max(ids.values()) + 1)
        kinds = bytearray([TokenKind.UNUSED]) * len(texts)
        has_bytes = bool(self._model.get("byte_fallback"))
        for text, token_id in ids.items():
            is_byte = has_bytes and text.startswith("<0x") and BYTE_TOKEN.fullmatch(text)
            texts[token_id], kinds[token_id] = text, TokenKind.BYTE if is_byte else TokenKind.NORMAL
        for token in self.added:
            texts[token.token_id] = token.text
            kinds[token.token_id] = TokenKind.CONTROL if token.is_special else TokenKind.USER_DEFINED
        return tuple(texts), bytes(kinds)

    @property
    def unknown_token(self) -> str | None:
        unknown, unk_id, vocab = (self._model.get(key) for key in ("unk_token", "unk_id", "vocab"))
        if type(unk_id) is int and isinstance(vocab, list) and 0 <= unk_id < len(vocab):
            unknown = vocab[unk_id][0]
        return unknown if isinstance(unknown, str) else None

    @property
    def first_token(self) -> str | None:
        """The special token that the file puts before every text."""
        return self._framing_token(0)

    @property
    def last_token(self) -> str | None:
        """The special token that the file puts after every text."""
        return self._framing_token(-1)

    def _framing_token(self, place: int) -> str | None:
        for step in _steps(self._content.get("post_processor"), "processors"):
            single = step.get("single") if step.get("type") == "TemplateProcessing" else None
            if isinstance(single, list) and single and isinstance(single[place], dict):
                special = single[place].get("SpecialToken")
                return str(special.get("id")) if isinstance(special, dict) else None
        return None

    def encoder(self, vocabulary: Vocabulary, text: str) -> PieceEncoder:
        """Return the encoder; `text` is the file's own text. Raises UnsupportedModel for another kind."""
        types = {str(step.get("type")) for step in self._all_steps()}
        if self._model.get("type", "BPE") == "BPE" and "ByteLevel" in types:
            return _library_encoder(vocabulary, text)
        return self._sentencepiece(vocabulary)

    def _sentencepiece(self, vocabulary: Vocabulary) -> SentencePieceEncoder:
        rules, words = self._rules()
        kind = self._model.get("type", "BPE")
        if kind == "Unigram":
            scores = _scores(self._model.get("vocab"), len(vocabulary.texts))
            return SentencePieceEncoder(
                vocabulary, segmenter_of(vocabulary, scores, merges=False), rules, words
            )
        if kind != "BPE" or self._model.get("ignore_merges"):
            raise _unsupported(f"the model {kind}")
        merging = MergingSegmenter(_priorities(self._model.get("merges")), " ")
        return SentencePieceEncoder(vocabulary, merging, rules, words)

    def _rules(self) -> tuple[TextRules, str | None]:
        """Return the rules, and the pattern of words where the file cuts before every space."""
        prefix, is_optional, words = SpacePrefix.NEVER, False, None
        for step in self._all_steps():
            kind = step.get("type")
            if kind == "Prepend" and step.get("prepend") == SPACE:
                prefix = SpacePrefix.PIECE
            elif kind == "Metaspace" and step.get("replacement") == SPACE:
                prefix, is_optional = _metaspace_prefix(step), True
                words = _ANY_SPACES if step.get("split", True) else None
            elif not _is_spacing(step):
                raise _unsupported(f"the step {kind} {dict(step)!r:.120}")
        return TextRules(prefix=prefix, prefix_is_optional=is_optional), words

    def _all_steps(self) -> Iterator[Json]:
        yield from _steps(self._content.get("normalizer"), "normalizers")
        yield from _steps(self._content.get("pre_tokenizer"), "pretokenizers")


def _metaspace_prefix(step: Json) -> SpacePrefix:
    scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
    known = {"always": SpacePrefix.PIECE, "first": SpacePrefix.FIRST, "never": SpacePrefix.NEVER}
    if scheme not in known:
        raise _unsupported(f"the prepend scheme {scheme!r:.40}")
    return known[scheme]


def _is_spacing(step: Json) -> bool:
    """Whether a step only exchanges spaces, which the encoder does itself, or cuts where none are left."""
    pattern = step.get("pattern")
    is_space = isinstance(pattern, dict) and pattern.get("String") == " "
    replaces = step.get("type") == "Replace" and step.get("content") == SPACE
    return is_space and (replaces or step.get("type") == "Split")


def _steps(node: Any, inner: str) -> Iterator[Json]:  # Any: JSON
    """Yield the steps of a pipeline in order, sequences unrolled one level."""
    if not isinstance(node, dict):
        return
    if node.get("type") == "Sequence":
        yield from (step for step in node.get(inner) or [] if isinstance(step, dict))
    else:
        yield node


def _library_encoder(vocabulary: Vocabulary, text: str) -> ByteLevelEncoder:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise _bad(f"the tokenizers library cannot read it: {error!s:.200}") from error
    backend.no_padding()
    backend.no_truncation()
    # Control tokens in a text stay text: whoever wants them finds them first.
    backend.encode_special_tokens = True
    return ByteLevelEncoder(vocabulary, backend)


def _priorities(merges: Any) -> Mapping[str, float]:  # Any: JSON
    if not isinstance(merges, list):
        raise _bad("'model.merges' is not a list")
    # Newer files have pairs, older ones "left right".
    pairs = merges if not merges or isinstance(merges[0], str) else [" ".join(pair) for pair in merges]
    try:
        # From the last to the first: the first of equal ones counts.
        return dict(zip(reversed(pairs), range(len(pairs) - 1, -1, -1), strict=True))
    except TypeError as error:
        raise _bad("'model.merges' holds something that is no pair of texts") from error


def _scores(vocab: Any, num_tokens: int) -> list[float]:  # Any: JSON
    try:
        scores = [float(item[1]) for item in vocab]
    except (TypeError, ValueError, LookupError) as error:
        raise _bad("'model.vocab' must hold pairs of a piece and its score") from error
    return scores + [0.0] * (num_tokens - len(scores))


def _added(item: Any) -> AddedToken:  # Any: JSON
    token_id, text = (item.get("id"), item.get("content")) if isinstance(item, dict) else (None, None)
    if type(token_id) is not int or not 0 <= token_id < _MAX_TOKENS or not isinstance(text, str) or not text:
        raise _bad(f"an added token is {item!r:.80} and needs an id and a content")
    return AddedToken(
        token_id=token_id,
        text=text,
        is_special=bool(item.get("special")),
        strips_left=bool(item.get("lstrip")),
        strips_right=bool(item.get("rstrip")),
    )


def _object(value: Any, name: str) -> Mapping[str, Any]:  # Any: JSON
    if not isinstance(value, Mapping):
        raise _bad(f"'{name}' is missing or no object")
    return value


def _bad(message: str) -> BadModelFile:
    return BadModelFile(f"'tokenizer.json': {message}; download it again")


def _unsupported(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"'tokenizer.json' needs {what}, which is not supported yet; known are byte-level BPE, and BPE or "
        "unigram models with sentencepiece's spaces"
    )
