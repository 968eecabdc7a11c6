"""Reads a Hugging Face `tokenizer.json`: which algorithm, which rules, which tokens. Knows no folder.

Byte-level BPE runs on the tokenizers library, which the file was written by. Sentencepiece's kind (spaces as
U+2581, bytes for unknown characters) runs on our own encoder, which opens a large vocabulary several times
faster. Anything else is refused by name: a tokenizer that is nearly right gives nearly right answers.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

from appliance.errors import UnsupportedModel
from appliance.formats.json_file import Json, parse_object
from appliance.text.byte_level import ByteLevelEncoder
from appliance.text.merge_table import ranked
from appliance.text.piece_encoder import PieceEncoder
from appliance.text.segmenters import MergingSegmenter
from appliance.text.sentencepiece import SPACE, SentencePieceEncoder, SpacePrefix, TextRules, segmenter_of
from appliance.text.token_tables import TokenTables, added_tokens, bad_tokenizer, read_tables, without_tables
from appliance.text.vocabulary import Vocabulary

MAX_TOKENIZER_BYTES = 128 << 20
_ANY_SPACES = f"{SPACE}[^{SPACE}]*|[^{SPACE}]+"  # every space begins a word


class TokenizerJson:
    """A file's rules, and its tokens in tables."""

    def __init__(self, rules: Json, tables: TokenTables) -> None:
        """`rules` are the file's content without what the tables hold. Raises BadModelFile."""
        self.rules = rules
        self.tables = tables
        self.added = added_tokens(rules)
        self._model = _model(rules)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read a file. Raises BadModelFile where it contradicts itself."""
        content = parse_object(data, what="'tokenizer.json'")
        tables = read_tables(_model(content), added_tokens(content), takes_merges=not _is_byte_level(content))
        return cls(without_tables(content), tables)

    @property
    def unknown_token(self) -> str | None:
        unknown = self._model.get("unk_token")
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
        for step in _steps(self.rules.get("post_processor"), "processors"):
            single = step.get("single") if step.get("type") == "TemplateProcessing" else None
            if isinstance(single, list) and single and isinstance(single[place], dict):
                special = single[place].get("SpecialToken")
                return str(special.get("id")) if isinstance(special, dict) else None
        return None

    def encoder(self, vocabulary: Vocabulary, data: bytes) -> PieceEncoder:
        """Return the encoder; `data` is the whole file, which a library reads itself.

        Raises UnsupportedModel for another kind.
        """
        if _is_byte_level(self.rules):
            return _library_encoder(vocabulary, data.decode("utf-8-sig"))
        return self._sentencepiece(vocabulary)

    def _sentencepiece(self, vocabulary: Vocabulary) -> SentencePieceEncoder:
        rules, words = self._rules()
        scores, merges = self.tables.scores, self.tables.merges
        if scores is not None:
            segmenter = segmenter_of(vocabulary, scores, merges=False)
            return SentencePieceEncoder(vocabulary, segmenter, rules, words)
        if merges is None or self._model.get("ignore_merges"):
            raise _unsupported(f"the model {self._model.get('type', 'BPE')}")
        merging = MergingSegmenter(ranked(merges, vocabulary.ordinary_ids, vocabulary.other_ids))
        return SentencePieceEncoder(vocabulary, merging, rules, words)

    def _rules(self) -> tuple[TextRules, str | None]:
        """Return the rules, and the pattern of words where the file cuts before every space."""
        prefix, is_optional, words = SpacePrefix.NEVER, False, None
        for step in _text_steps(self.rules):
            kind = step.get("type")
            if kind == "Prepend" and step.get("prepend") == SPACE:
                prefix = SpacePrefix.PIECE
            elif kind == "Metaspace" and step.get("replacement") == SPACE:
                prefix, is_optional = _metaspace_prefix(step), True
                words = _ANY_SPACES if step.get("split", True) else None
            elif not _is_spacing(step):
                raise _unsupported(f"the step {kind} {dict(step)!r:.120}")
        return TextRules(prefix=prefix, prefix_is_optional=is_optional), words


def _model(content: Json) -> Json:
    model = content.get("model")
    if not isinstance(model, Mapping):
        raise bad_tokenizer("'model' is missing or no object")
    return model


def _is_byte_level(content: Json) -> bool:
    types = {step.get("type") for step in _text_steps(content)}
    return _model(content).get("type", "BPE") == "BPE" and "ByteLevel" in types


def _text_steps(content: Json) -> Iterator[Json]:
    yield from _steps(content.get("normalizer"), "normalizers")
    yield from _steps(content.get("pre_tokenizer"), "pretokenizers")


def _steps(node: Any, inner: str) -> Iterator[Json]:  # Any: JSON
    """Yield the steps of a pipeline in order, sequences unrolled one level."""
    if not isinstance(node, dict):
        return
    if node.get("type") == "Sequence":
        yield from (step for step in node.get(inner) or [] if isinstance(step, dict))
    else:
        yield node


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


def _library_encoder(vocabulary: Vocabulary, text: str) -> ByteLevelEncoder:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise bad_tokenizer(f"the tokenizers library cannot read it: {error!s:.200}") from error
    backend.no_padding()
    backend.no_truncation()
    # Control tokens in a text stay text: whoever wants them finds them first.
    backend.encode_special_tokens = True
    return ByteLevelEncoder(vocabulary, backend)


def _unsupported(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"'tokenizer.json' needs {what}, which is not supported yet; known are byte-level BPE, and BPE or "
        "unigram models with sentencepiece's spaces"
    )
