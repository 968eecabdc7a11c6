"""Writes and trains sentencepiece models for tests, for the library of that name to be compared with."""

import io
import struct
from collections.abc import Sequence

import sentencepiece

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def field(number: int, value: bytes | int | float) -> bytes:
    """Return one protobuf field."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def model_bytes(
    texts: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[int],
    *,
    is_bpe: bool = True,
    adds_prefix: bool = True,
    removes_extra_spaces: bool = False,
) -> bytes:
    """Return a tokenizer.model of these pieces, with byte fallback where there are byte pieces."""
    pieces = b"".join(
        field(1, field(1, text.encode()) + field(2, float(score)) + field(3, kind))
        for text, score, kind in zip(texts, scores, kinds, strict=True)
    )
    ids = {text: i for i, text in enumerate(texts)}
    trainer = field(3, 2 if is_bpe else 1) + field(35, int(BYTE in kinds)) + field(40, kinds.index(UNKNOWN))
    # -1 as protobuf has it: ten bytes.
    trainer += field(41, ids.get("<s>", 2**64 - 1)) + field(42, ids.get("</s>", 2**64 - 1))
    normalizer = field(1, b"identity") + field(3, int(adds_prefix)) + field(4, int(removes_extra_spaces))
    return pieces + field(2, trainer) + field(3, normalizer + field(5, 1))


def trained(sentences: Sequence[str], kind: str, vocab_size: int, **options: object) -> bytes:
    """Train a model on some sentences and return its tokenizer.model."""
    out = io.BytesIO()
    settings: dict[str, object] = {
        "model_type": kind,
        "vocab_size": vocab_size,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_by_whitespace": True,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=out, **(settings | options)
    )
    return out.getvalue()


def oracle(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)
