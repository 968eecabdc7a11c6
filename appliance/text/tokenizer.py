"""Text to token ids and back. Knows a vocabulary and its control tokens; knows no chat and no stream.

Control tokens are found by this class, not by an encoder: only `split_control` and encode with
`parse_special` ever produce them, so text from a user cannot.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from appliance.text.literal_finder import LiteralFinder
from appliance.text.piece_encoder import PieceEncoder
from appliance.text.vocabulary import TokenKind, Vocabulary


class Tokenizer:
    """Encodes and decodes for one model. Safe to use from several threads."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: PieceEncoder,
        *,
        adds_bos: bool,
        last_token_id: int | None = None,
        strips_left: frozenset[int] = frozenset(),
        strips_right: frozenset[int] = frozenset(),
    ) -> None:
        """`strips_left` and `strips_right` are control tokens that swallow the blanks on that side.

        `last_token_id` ends a text that is whole, where the model was taught so.
        """
        self._vocabulary = vocabulary
        self._encoder = encoder
        self.adds_bos = adds_bos
        self.last_token_id = last_token_id
        self._strips_left = strips_left
        self._strips_right = strips_right

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

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Tokens that steer the model and have no text of their own, by the text that spells them."""
        return self._vocabulary.control_ids

    @cached_property
    def controls(self) -> LiteralFinder:
        """Finds the texts of control tokens."""
        return LiteralFinder(self._vocabulary.control_ids)

    def is_control(self, token_id: int) -> bool:
        """Say whether a token steers the model and has no text of its own."""
        return self._vocabulary.is_steering(token_id)

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
                ids.extend(self._encoder.encode(segment, is_first=not ids))
        return ids

    def split_control(self, text: str) -> list[str | int]:
        """Return the text cut at its control tokens, each of them as its id."""
        segments: list[str | int] = []
        previous: int | None = None
        for plain, control in self.controls.split(text):
            token_id = self._vocabulary.control_ids[control] if control else None
            if previous in self._strips_right:
                plain = plain.lstrip()
            if token_id in self._strips_left:
                plain = plain.rstrip()
            segments.append(plain)
            if token_id is not None:
                segments.append(token_id)
            previous = token_id
        return segments

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
        if kind == TokenKind.NORMAL:
            return self._encoder.bytes_of(text)
        if kind == TokenKind.BYTE:
            return bytes([int(text[3:5], 16)])
        return text.encode() if kind == TokenKind.USER_DEFINED else b""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids, U+FFFD for bytes that are no UTF-8."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def spelt(self, ids: Iterable[int]) -> str:
        """Return the text of the ids with control tokens by their names, for people to read."""
        pieces = [
            self._text_of(token_id).encode() if self.is_control(token_id) else self.token_bytes(token_id)
            for token_id in ids
        ]
        return b"".join(pieces).decode("utf-8", "replace")

    def _text_of(self, token_id: int | None) -> str:
        return "" if token_id is None else self._vocabulary.texts[token_id]
