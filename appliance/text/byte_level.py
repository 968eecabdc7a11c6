"""Byte-level BPE: GPT-2's kind of tokenizer, over the tokenizers library. Knows no control tokens' use."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from appliance.errors import InvalidRequest
from appliance.formats.gguf import GGUFFile
from appliance.text.pre_tokenizers import PreTokenizer
from appliance.text.vocabulary import PREFIX, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_LONG_TEXT = 4096  # characters: about 2 ms of encoding


class ByteLevelEncoder:
    """Encodes with a backend that may know the control tokens as ordinary ones; none comes out of here."""

    def __init__(self, vocabulary: Vocabulary, backend: "tokenizers.Tokenizer") -> None:
        self._vocabulary = vocabulary
        self._backend = backend
        self._control_ids = frozenset(vocabulary.control_ids.values())

    def encode(self, text: str, *, is_first: bool) -> list[int]:  # noqa: ARG002  # words do not care
        """Return the ids of a text. Raises InvalidRequest for lone surrogates."""
        try:
            if len(text) < _LONG_TEXT:
                ids = self._backend.encode(text, add_special_tokens=False).ids
            else:
                # Unlike encode, this lets other threads run meanwhile.
                ids = self._backend.encode_batch([text], add_special_tokens=False)[0].ids
        except (UnicodeEncodeError, TypeError) as error:
            raise lone_surrogate() from error
        if self._control_ids.isdisjoint(ids):
            return ids
        return [piece for token_id in ids for piece in self._spelt_out(token_id)]

    def bytes_of(self, piece: str) -> bytes:
        """Return the bytes behind GPT-2's characters; other text as UTF-8."""
        try:
            return bytes([_BYTE_OF[character] for character in piece])
        except KeyError:
            return piece.encode()

    def _spelt_out(self, token_id: int) -> list[int]:
        """Return the token itself, or the byte tokens of its text where it is a control token.

        Merges can end in one where its text is made of letters alone.
        """
        if token_id not in self._control_ids:
            return [token_id]
        ids = self._vocabulary.ids
        characters = map(_CHARACTER_OF.__getitem__, self._vocabulary.texts[token_id].encode())
        return [ids[character] for character in characters if character in ids]


def lone_surrogate() -> InvalidRequest:
    """Return the error for text that no encoding can carry."""
    return InvalidRequest("the text holds a lone surrogate; send valid Unicode")


def byte_level_from_gguf(
    file: GGUFFile, vocabulary: Vocabulary, pre_tokenizer: PreTokenizer
) -> ByteLevelEncoder:
    """Build the encoder. Raises BadModelFile where the merges do not fit the vocabulary."""
    # Loaded here: what only names a tokenizer's type must not load the library.
    from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    merges = _read_merges(file, vocabulary)
    model = models.BPE(vocab=dict(vocabulary.ids), merges=merges, ignore_merges=pre_tokenizer.ignores_merges)
    backend = Backend(model)
    if pre_tokenizer.normalizes_to_nfc:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre_tokenizer.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.add_tokens([AddedToken(text, normalized=False) for text in vocabulary.user_defined])
    return ByteLevelEncoder(vocabulary, backend)


def _read_merges(file: GGUFFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    key = f"{PREFIX}merges"
    ids = vocabulary.ids
    merges: list[tuple[str, str]] = []
    for line in file.metadata_strings(key):
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise file.bad(f"'{key}' holds {line!r:.80}, which is not two tokens")
        if left not in ids or right not in ids or left + right not in ids:
            raise file.bad(f"'{key}' joins {left!r:.80} and {right!r:.80}, not all in the vocabulary")
        merges.append((left, right))
    return merges


def _byte_characters() -> Mapping[int, str]:
    """Return GPT-2's character for each byte: itself where it is visible, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}


_CHARACTER_OF: Mapping[int, str] = _byte_characters()
_BYTE_OF: Mapping[str, int] = {character: byte for byte, character in _CHARACTER_OF.items()}
