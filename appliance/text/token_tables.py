"""The long parts of a `tokenizer.json` as tables: texts, kinds, merges or scores. Knows no rules of text."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.errors import BadModelFile
from appliance.text.merge_table import MergeTable, merge_table
from appliance.text.vocabulary import BYTE_TOKEN, TokenKind

_MAX_TOKENS = 1 << 22
_LONG_PARTS = ("vocab", "merges", "unk_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """An entry of `added_tokens`."""

    token_id: int
    text: str
    is_special: bool
    strips_left: bool = False
    strips_right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTables:
    """Each token's text and kind by id; ids that nothing has are unused. Scores are a unigram model's."""

    texts: tuple[str, ...]
    kinds: bytes
    merges: MergeTable | None = None
    scores: "array[float] | None" = None


def added_tokens(content: Mapping[str, Any]) -> tuple[AddedToken, ...]:  # Any: JSON
    """Raises BadModelFile."""
    return tuple(map(_added, content.get("added_tokens") or []))


def read_tables(
    model: Mapping[str, Any],  # Any: JSON
    added: Sequence[AddedToken],
    *,
    takes_merges: bool,
) -> TokenTables:
    """Raises BadModelFile where the tokens contradict themselves."""
    ids = _ids(model.get("vocab"), added)
    texts = [""] * (max(ids.values()) + 1)
    kinds = bytearray([TokenKind.UNUSED]) * len(texts)
    has_bytes = bool(model.get("byte_fallback"))
    for text, token_id in ids.items():
        is_byte = has_bytes and text.startswith("<0x") and BYTE_TOKEN.fullmatch(text)
        texts[token_id], kinds[token_id] = text, TokenKind.BYTE if is_byte else TokenKind.NORMAL
    for token in added:
        texts[token.token_id] = token.text
        kinds[token.token_id] = TokenKind.CONTROL if token.is_special else TokenKind.USER_DEFINED
    kind = model.get("type", "BPE")
    return TokenTables(
        texts=tuple(texts),
        kinds=bytes(kinds),
        merges=_merges(model.get("merges"), ids, len(texts)) if takes_merges and kind == "BPE" else None,
        scores=_scores(model.get("vocab"), len(texts)) if kind == "Unigram" else None,
    )


def without_tables(content: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """What a file says besides its tables, the unknown token by its text."""
    model = content["model"]
    rest = {key: value for key, value in model.items() if key not in _LONG_PARTS}
    vocab, unk_id = model.get("vocab"), model.get("unk_id")
    if type(unk_id) is int and isinstance(vocab, list) and 0 <= unk_id < len(vocab):
        rest["unk_token"] = vocab[unk_id][0]
    return {**content, "model": rest}


def bad_tokenizer(message: str) -> BadModelFile:
    return BadModelFile(f"'tokenizer.json': {message}; download it again")


def _ids(vocab: Any, added: Sequence[AddedToken]) -> dict[str, int]:  # Any: JSON
    if isinstance(vocab, list):  # a unigram model: pieces with scores
        # From the last to the first: the first of equal pieces counts.
        vocab = {str(item[0]): i for i, item in reversed(list(enumerate(vocab)))}
    if not isinstance(vocab, Mapping):
        raise bad_tokenizer("'model.vocab' is missing or no object")
    ids = {**vocab, **{token.text: token.token_id for token in added}}
    if not ids or not all(type(i) is int and 0 <= i < _MAX_TOKENS for i in ids.values()):
        raise bad_tokenizer(f"'model.vocab' must give ids from 0 to {_MAX_TOKENS}")
    return ids


def _merges(merges: Any, ids: Mapping[str, int], num_tokens: int) -> MergeTable:  # Any: JSON
    if not isinstance(merges, list):
        raise bad_tokenizer("'model.merges' is not a list")
    try:
        return merge_table(_pairs(merges), ids, num_tokens)
    except KeyError as error:
        raise bad_tokenizer(
            f"'model.merges' makes {error.args[0]!r:.80}, which is not in the vocabulary"
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise bad_tokenizer("'model.merges' holds something that is no pair of texts") from error


def _pairs(merges: Sequence[Any]) -> Iterable[Any]:  # Any: JSON
    """Newer files have pairs, older ones "left right"."""
    return (merge.split(" ") for merge in merges) if merges and isinstance(merges[0], str) else merges


def _scores(vocab: Any, num_tokens: int) -> "array[float]":  # Any: JSON
    try:
        scores = array("d", [float(item[1]) for item in vocab])
    except (TypeError, ValueError, LookupError) as error:
        raise bad_tokenizer("'model.vocab' must hold pairs of a piece and its score") from error
    scores.extend([0.0] * (num_tokens - len(scores)))
    return scores


def _added(item: Any) -> AddedToken:  # Any: JSON
    token_id, text = (item.get("id"), item.get("content")) if isinstance(item, dict) else (None, None)
    if type(token_id) is not int or not 0 <= token_id < _MAX_TOKENS or not isinstance(text, str) or not text:
        raise bad_tokenizer(f"an added token is {item!r:.80} and needs an id and a content")
    return AddedToken(
        token_id=token_id,
        text=text,
        is_special=bool(item.get("special")),
        strips_left=bool(item.get("lstrip")),
        strips_right=bool(item.get("rstrip")),
    )
