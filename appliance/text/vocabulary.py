"""The tokens of a model: texts, kinds, and which of them end an answer. Knows no text encoding."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import compress

from appliance.formats.gguf import GGUFFile
from appliance.formats.number_array import as_bytes

PREFIX = "tokenizer.ggml."
# A token of kind BYTE names its byte.
BYTE_TOKEN = re.compile(r"<0[xX][0-9A-Fa-f]{2}>")

# Keys that name a token ending the answer.
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# Markers that end a turn in one chat format or another; a model may list several of them.
_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|return|>",
    "<|call|>",
    "<EOT>",
    "<eos>",
    "</s>",
)
# Where only the file's ordinary added tokens have these names they are markup: "</s>" strikes text through.
_MARKUP = ("</s>", "<eos>", "<EOT>")


class TokenKind(IntEnum):
    """What a token is, as stored in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_IS_NORMAL = bytes(kind == TokenKind.NORMAL for kind in range(256))
_STEERING = (TokenKind.CONTROL, TokenKind.UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens by id; `kinds` holds a TokenKind per byte."""

    texts: tuple[str, ...]
    kinds: bytes
    bos_token_id: int | None
    eos_token_id: int | None
    unknown_token_id: int | None = None
    named_stop_ids: frozenset[int] = frozenset()

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Token ids by text, unused ones left out; the first of equal texts counts."""
        texts, kinds = self.texts, self.kinds
        if TokenKind.UNUSED not in kinds:
            # From the last to the first, so that the first of equal texts stays.
            return dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))
        return {texts[i]: i for i in range(len(texts) - 1, -1, -1) if kinds[i] != TokenKind.UNUSED}

    @cached_property
    def control_ids(self) -> Mapping[str, int]:
        """Tokens that steer the model and have no text of their own."""
        return {self.texts[i]: i for i in self.ids_of(*_STEERING) if self.texts[i]}

    @cached_property
    def user_defined(self) -> Mapping[str, int]:
        """Texts that are always one token."""
        return {self.texts[i]: i for i in self.ids_of(TokenKind.USER_DEFINED) if self.texts[i]}

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """The tokens that end an answer: those the file names, and well-known turn ends it has."""
        ends = set(_TURN_ENDS)
        # Where a format has its own end of answer, this marker only ends a part of it.
        if "<|return|>" in self.control_ids or "<|return|>" in self.user_defined:
            ends.discard("<|end|>")
        # Ordinary text may well contain "</s>", so a marker must be special here.
        found = {self.control_ids[text] for text in ends.intersection(self.control_ids)}
        added = ends.difference(_MARKUP).intersection(self.user_defined)
        return self.named_stop_ids | found | {self.user_defined[text] for text in added}

    @property
    def is_normal(self) -> bytes:
        """A byte per token: 1 for pieces that text may become."""
        return self.kinds.translate(_IS_NORMAL)

    def is_steering(self, token_id: int) -> bool:
        """Say whether a token steers the model and has no text of its own."""
        return self.kinds[token_id] in _STEERING

    def ids_of(self, *kinds: TokenKind) -> list[int]:
        """Return the tokens of these kinds, in order."""
        return [found.start() for found in re.finditer(b"[" + re.escape(bytes(kinds)) + b"]", self.kinds)]

    @cached_property
    def other_ids(self) -> Mapping[str, int]:
        """Ids of the texts that are not in `ordinary_ids`, unused ones left out."""
        kinds = (TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.BYTE)
        return {self.texts[i]: i for i in reversed(self.ids_of(*kinds)) if self.texts[i]}

    @cached_property
    def ordinary_ids(self) -> Mapping[str, int]:
        """Ids of pieces that text may become; the first of equal texts counts."""
        is_normal = self.is_normal[::-1]
        last_to_first = range(len(self.texts) - 1, -1, -1)
        pairs = zip(
            compress(reversed(self.texts), is_normal), compress(last_to_first, is_normal), strict=True
        )
        # dict() would make a tuple per token, for the garbage collector to visit again and again.
        return {text: i for text, i in pairs}  # noqa: C416


def vocabulary_from_gguf(file: GGUFFile) -> Vocabulary:
    """Read and check the vocabulary. Raises BadModelFile naming the key at fault."""
    texts = file.metadata_strings(f"{PREFIX}tokens")
    if not texts:
        raise file.bad(f"the metadata key '{PREFIX}tokens' is empty")
    stop_key_ids = [_token_id(file, key, len(texts)) for key in _STOP_KEYS]
    bos_token_id = _token_id(file, "bos_token_id", len(texts))
    return Vocabulary(
        texts=texts,
        kinds=_read_kinds(file, texts, steering=[bos_token_id, *stop_key_ids]),
        bos_token_id=bos_token_id,
        eos_token_id=stop_key_ids[0],
        unknown_token_id=_token_id(file, "unknown_token_id", len(texts)),
        named_stop_ids=frozenset(token_id for token_id in stop_key_ids if token_id is not None),
    )


def _token_id(file: GGUFFile, name: str, num_tokens: int) -> int | None:
    key = f"{PREFIX}{name}"
    if key not in file.metadata:
        return None
    token_id = file.metadata_int(key)
    if not 0 <= token_id < num_tokens:
        raise file.bad(f"the metadata key '{key}' is {token_id} and the vocabulary has {num_tokens} tokens")
    return token_id


def _read_kinds(file: GGUFFile, texts: tuple[str, ...], steering: Iterable[int | None]) -> bytes:
    """Return a kind per token. Without the key, only tokens that the file names as special are control."""
    key = f"{PREFIX}token_type"
    if key not in file.metadata:
        return _with_steering(bytes([TokenKind.NORMAL]) * len(texts), steering)
    numbers = file.metadata_ints(key)
    if len(numbers) != len(texts):
        raise file.bad(f"'{key}' has {len(numbers)} entries and the vocabulary has {len(texts)} tokens")
    unknown = numbers[(numbers < min(TokenKind)) | (numbers > max(TokenKind))]
    if len(unknown):
        raise file.bad(f"'{key}' holds the kind {unknown.min()} and kinds are 1 to {len(TokenKind)}")
    return _with_steering(as_bytes(numbers), steering)


def _with_steering(given: bytes, steering: Iterable[int | None]) -> bytes:
    kinds = bytearray(given)
    for token_id in steering:
        if token_id is not None:
            kinds[token_id] = TokenKind.CONTROL
    return bytes(kinds)
