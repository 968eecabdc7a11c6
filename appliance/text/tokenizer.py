"""Text to token ids and back, for byte-level BPE models. Knows a vocabulary; knows no chat and no stream.

Control tokens are found by this class, not by the tokenizers library: only `split_control` and encode with
`parse_special` ever produce them, so text from a user cannot.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from appliance.errors import InvalidRequest, UnsupportedModel
from appliance.formats.gguf import GGUFFile
from appliance.text.pre_tokenizers import PreTokenizer, pre_tokenizer_named
from appliance.text.vocabulary import TokenKind, Vocabulary, vocabulary_from_gguf

if TYPE_CHECKING:
    import tokenizers

_LONG_TEXT = 4096  # characters: about 2 ms of encoding


class Tokenizer:
    """Encodes and decodes for one model. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, backend: "tokenizers.Tokenizer", *, adds_bos: bool) -> None:
        self._vocabulary = vocabulary
        self._backend = backend
        self.adds_bos = adds_bos

    @property
    def vocab_size(self) -> int:
        return len(self._vocabulary.texts)

    @property
    def bos_token_id(self) -> int | None:
        return self._vocabulary.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        return self._vocabulary.eos_token_id

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self._vocabulary.stop_token_ids

    @property
    def bos_token(self) -> str:
        """Text of the first token of a text, or "" where the model has none."""
        return self._text_of(self.bos_token_id)

    @property
    def eos_token(self) -> str:
        """Text of the token that ends a text, or "" where the model has none."""
        return self._text_of(self.eos_token_id)

    @cached_property
    def control_pattern(self) -> re.Pattern[str]:
        """Matches the text of any control token, the longest first; never matches where there are none."""
        texts = sorted(self._vocabulary.control_ids, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    @cached_property
    def control_starts(self) -> frozenset[str]:
        """The characters that control tokens begin with."""
        return frozenset(text[0] for text in self._vocabulary.control_ids)

    def is_control(self, token_id: int) -> bool:
        """Say whether a token steers the model and has no text of its own."""
        return self._vocabulary.kinds[token_id] in (TokenKind.CONTROL, TokenKind.UNKNOWN)

    def encode(self, text: str, *, parse_special: bool, add_bos: bool | None = None) -> list[int]:
        """Return the token ids of a text.

        Text that looks like a control token becomes one only with `parse_special`. `add_bos` None follows
        the model; a BOS is never put before one that is there. Raises InvalidRequest for lone surrogates.
        """
        segments = self.split_control(text) if parse_special else [text]
        return self.with_bos(self.encode_segments(segments), add_bos=add_bos)

    def encode_segments(self, segments: Iterable[str | int]) -> list[int]:
        """Return the ids of texts, none of which becomes a control token, and of given token ids between."""
        ids: list[int] = []
        for segment in segments:
            if isinstance(segment, int):
                ids.append(segment)
            elif segment:
                ids.extend(self._encode_plain(segment))
        return ids

    def split_control(self, text: str) -> list[str | int]:
        """Return the text cut at its control tokens, each of them as its id."""
        segments: list[str | int] = []
        end = 0
        for match in self.control_pattern.finditer(text):
            segments += [text[end : match.start()], self._vocabulary.control_ids[match.group()]]
            end = match.end()
        return [*segments, text[end:]]

    def with_bos(self, ids: list[int], *, add_bos: bool | None = None) -> list[int]:
        """Return the ids with one BOS before them where the model, or `add_bos`, wants it."""
        wanted = self.adds_bos if add_bos is None else add_bos
        bos_token_id = self.bos_token_id
        if not wanted or bos_token_id is None or ids[:1] == [bos_token_id]:
            return ids
        return [bos_token_id, *ids]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for, which may be part of a character; b"" for control tokens."""
        text, kind = self._vocabulary.texts[token_id], self._vocabulary.kinds[token_id]
        if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.UNUSED):
            return b""
        if kind is TokenKind.USER_DEFINED:
            return text.encode()
        try:
            return bytes([_BYTE_OF[character] for character in text])
        except KeyError:
            return text.encode()

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids, U+FFFD for bytes that are no UTF-8."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def _encode_plain(self, text: str) -> list[int]:
        try:
            if len(text) < _LONG_TEXT:
                ids = self._backend.encode(text, add_special_tokens=False).ids
            else:
                # Unlike encode, this lets other threads run meanwhile.
                ids = self._backend.encode_batch([text], add_special_tokens=False)[0].ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest("the text holds a lone surrogate; send valid Unicode") from error
        if self._control_id_set.isdisjoint(ids):
            return ids
        return [piece for token_id in ids for piece in self._spelt_out(token_id)]

    def _spelt_out(self, token_id: int) -> list[int]:
        """Return the token itself, or the byte tokens of its text where it is a control token.

        Merges can end in one where its text is made of letters alone.
        """
        if not self.is_control(token_id):
            return [token_id]
        characters = map(_CHARACTER_OF.__getitem__, self._vocabulary.texts[token_id].encode())
        return [
            self._vocabulary.ids[character] for character in characters if character in self._vocabulary.ids
        ]

    @cached_property
    def _control_id_set(self) -> frozenset[int]:
        return frozenset(self._vocabulary.control_ids.values())

    def _text_of(self, token_id: int | None) -> str:
        return "" if token_id is None else self._vocabulary.texts[token_id]


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Raises UnsupportedModel for another kind of tokenizer or an unknown pre-tokenizer, BadModelFile when the
    vocabulary contradicts itself.
    """
    model = file.metadata_str("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedModel(f"the tokenizer model '{model}' is not supported yet; known is gpt2")
    pre_tokenizer = pre_tokenizer_named(file.metadata_str("tokenizer.ggml.pre", "default"))
    vocabulary = vocabulary_from_gguf(file)
    adds_bos = file.metadata_bool("tokenizer.ggml.add_bos_token", pre_tokenizer.adds_bos)
    return Tokenizer(vocabulary, _build_backend(vocabulary, pre_tokenizer), adds_bos=adds_bos)


def _build_backend(vocabulary: Vocabulary, pre_tokenizer: PreTokenizer) -> "tokenizers.Tokenizer":
    # Loaded here: what only names a tokenizer's type must not load the library.
    from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    model = models.BPE(
        vocab=dict(vocabulary.ids),
        merges=list(vocabulary.merges),
        ignore_merges=pre_tokenizer.ignores_merges,
    )
    backend = Backend(model)
    if pre_tokenizer.normalizes_to_nfc:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre_tokenizer.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.add_tokens([AddedToken(text, normalized=False) for text in vocabulary.user_defined])
    return backend


def _byte_characters() -> Mapping[int, str]:
    """Return GPT-2's character for each byte: itself where it is visible, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}


_CHARACTER_OF: Mapping[int, str] = _byte_characters()
_BYTE_OF: Mapping[str, int] = {character: byte for byte, character in _CHARACTER_OF.items()}
