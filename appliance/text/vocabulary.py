"""The tokens of a model, as its GGUF file lists them, and which of them steer. Knows no text encoding."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from appliance.formats.gguf import GGUFFile

_PREFIX = "tokenizer.ggml."

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


class TokenKind(IntEnum):
    """What a token is, as stored in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens by id, with their kinds; merges are pairs of token texts, best first."""

    texts: tuple[str, ...]
    kinds: tuple[TokenKind, ...]
    merges: tuple[tuple[str, str], ...]
    bos_token_id: int | None
    eos_token_id: int | None
    stop_token_ids: frozenset[int]

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Token ids by text, unused ones left out; the first of equal texts counts."""
        used = [index for index, kind in enumerate(self.kinds) if kind is not TokenKind.UNUSED]
        return {self.texts[index]: index for index in reversed(used)}

    @cached_property
    def control_ids(self) -> Mapping[str, int]:
        """Tokens that steer the model and have no text of their own."""
        steering = (TokenKind.CONTROL, TokenKind.UNKNOWN)
        return {self.texts[i]: i for i, kind in enumerate(self.kinds) if kind in steering and self.texts[i]}

    @cached_property
    def user_defined(self) -> tuple[str, ...]:
        """Texts that are always one token."""
        return tuple(
            text
            for text, kind in zip(self.texts, self.kinds, strict=True)
            if kind is TokenKind.USER_DEFINED and text
        )


def vocabulary_from_gguf(file: GGUFFile) -> Vocabulary:
    """Read and check the vocabulary. Raises BadModelFile naming the key at fault."""
    texts = file.metadata_strings(f"{_PREFIX}tokens")
    if not texts:
        raise file.bad(f"the metadata key '{_PREFIX}tokens' is empty")
    stop_key_ids = [_token_id(file, key, len(texts)) for key in _STOP_KEYS]
    bos_token_id = _token_id(file, "bos_token_id", len(texts))
    kinds = _read_kinds(file, texts, steering=[bos_token_id, *stop_key_ids])
    vocabulary = Vocabulary(
        texts=texts,
        kinds=kinds,
        merges=_read_merges(file),
        bos_token_id=bos_token_id,
        eos_token_id=stop_key_ids[0],
        stop_token_ids=_stop_token_ids(texts, kinds, stop_key_ids),
    )
    _check_merges(file, vocabulary)
    return vocabulary


def _token_id(file: GGUFFile, name: str, num_tokens: int) -> int | None:
    key = f"{_PREFIX}{name}"
    if key not in file.metadata:
        return None
    token_id = file.metadata_int(key)
    if not 0 <= token_id < num_tokens:
        raise file.bad(f"the metadata key '{key}' is {token_id} and the vocabulary has {num_tokens} tokens")
    return token_id


def _read_kinds(file: GGUFFile, texts: tuple[str, ...], steering: list[int | None]) -> tuple[TokenKind, ...]:
    """Return a kind per token. Without the key, only tokens that the file names as special are control."""
    key = f"{_PREFIX}token_type"
    by_id = {int(kind): kind for kind in TokenKind}
    numbers = file.metadata_ints(key, (TokenKind.NORMAL.value,) * len(texts))
    if len(numbers) != len(texts):
        raise file.bad(f"'{key}' has {len(numbers)} entries and the vocabulary has {len(texts)} tokens")
    unknown = set(numbers) - set(by_id)
    if unknown:
        raise file.bad(f"'{key}' holds the kind {min(unknown)} and kinds are 1 to {len(by_id)}")
    kinds = [by_id[number] for number in numbers]
    for token_id in steering:
        if token_id is not None:
            kinds[token_id] = TokenKind.CONTROL
    return tuple(kinds)


def _stop_token_ids(
    texts: tuple[str, ...], kinds: tuple[TokenKind, ...], named: list[int | None]
) -> frozenset[int]:
    """Return the tokens that end an answer: those the file names, and well-known turn ends it has."""
    ends = set(_TURN_ENDS)
    # Where a format has its own end of answer, this marker only ends a part of it.
    if "<|return|>" in texts:
        ends.discard("<|end|>")
    # Ordinary text may well contain "</s>", so a marker must be special here.
    special = (TokenKind.CONTROL, TokenKind.USER_DEFINED)
    found = {i for i, text in enumerate(texts) if text in ends and kinds[i] in special}
    return frozenset(found.union(token_id for token_id in named if token_id is not None))


def _read_merges(file: GGUFFile) -> tuple[tuple[str, str], ...]:
    key = f"{_PREFIX}merges"
    merges: list[tuple[str, str]] = []
    for line in file.metadata_strings(key):
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise file.bad(f"'{key}' holds {line!r:.80}, which is not two tokens")
        merges.append((left, right))
    return tuple(merges)


def _check_merges(file: GGUFFile, vocabulary: Vocabulary) -> None:
    ids = vocabulary.ids
    for left, right in vocabulary.merges:
        if left not in ids or right not in ids or left + right not in ids:
            raise file.bad(
                f"'{_PREFIX}merges' joins {left!r:.80} and {right!r:.80}, not all in the vocabulary"
            )
