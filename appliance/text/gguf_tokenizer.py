"""Builds the tokenizer that a GGUF file describes. Knows the metadata keys; the algorithms are elsewhere."""

from appliance.errors import UnsupportedModel
from appliance.formats.gguf import GGUFFile
from appliance.formats.number_array import has_nan
from appliance.text.byte_level import byte_level_from_gguf
from appliance.text.pre_tokenizers import pre_tokenizer_named
from appliance.text.segmenters import Segmenter
from appliance.text.sentencepiece import SentencePieceEncoder, SpacePrefix, TextRules, segmenter_of
from appliance.text.tokenizer import Tokenizer
from appliance.text.vocabulary import BYTE_TOKEN, PREFIX, TokenKind, Vocabulary, vocabulary_from_gguf

_MODELS = ("gpt2", "llama", "t5")


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Build a file's tokenizer.

    Raises UnsupportedModel for another kind of tokenizer or an unknown pre-tokenizer, BadModelFile when the
    vocabulary contradicts itself.
    """
    model = file.metadata_str(f"{PREFIX}model")
    if model == "gpt2":
        return _byte_level(file)
    if model not in _MODELS:
        raise UnsupportedModel(
            f"the tokenizer model '{model}' is not supported yet; known are {', '.join(_MODELS)}"
        )
    return _sentencepiece(file, merges=model == "llama")


def _byte_level(file: GGUFFile) -> Tokenizer:
    pre_tokenizer = pre_tokenizer_named(file.metadata_str(f"{PREFIX}pre", "default"))
    vocabulary = vocabulary_from_gguf(file)
    adds_bos = file.metadata_bool(f"{PREFIX}add_bos_token", pre_tokenizer.adds_bos)
    encoder = byte_level_from_gguf(file, vocabulary, pre_tokenizer)
    return Tokenizer(vocabulary, encoder, adds_bos=adds_bos, last_token_id=_last_token(file, vocabulary))


def _sentencepiece(file: GGUFFile, *, merges: bool) -> Tokenizer:
    vocabulary = vocabulary_from_gguf(file)
    for token_id in vocabulary.ids_of(TokenKind.BYTE):
        if not BYTE_TOKEN.fullmatch(vocabulary.texts[token_id]):
            raise file.bad(f"the byte token {token_id} is {vocabulary.texts[token_id]!r:.40}, not '<0x..>'")
    rules = TextRules(
        prefix=SpacePrefix.SEGMENT
        if file.metadata_bool(f"{PREFIX}add_space_prefix", True)
        else SpacePrefix.NEVER,
        removes_extra_spaces=file.metadata_bool(f"{PREFIX}remove_extra_whitespaces", False),
        cuts_at_added=merges,
    )
    encoder = SentencePieceEncoder(vocabulary, _segmenter(file, vocabulary, merges=merges), rules)
    adds_bos = file.metadata_bool(f"{PREFIX}add_bos_token", merges)
    return Tokenizer(vocabulary, encoder, adds_bos=adds_bos, last_token_id=_last_token(file, vocabulary))


def _last_token(file: GGUFFile, vocabulary: Vocabulary) -> int | None:
    return vocabulary.eos_token_id if file.metadata_bool(f"{PREFIX}add_eos_token", False) else None


def _segmenter(file: GGUFFile, vocabulary: Vocabulary, *, merges: bool) -> Segmenter:
    key = f"{PREFIX}scores"
    scores = file.metadata_floats(key)
    if len(scores) != len(vocabulary.texts):
        raise file.bad(
            f"'{key}' has {len(scores)} entries and the vocabulary has {len(vocabulary.texts)} tokens"
        )
    if has_nan(scores):
        raise file.bad(f"'{key}' holds a value that is no number")
    return segmenter_of(vocabulary, scores, merges=merges)
