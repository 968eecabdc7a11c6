"""Reads a sentencepiece `tokenizer.model`: a protobuf message of pieces and rules. Knows no folder.

Field numbers are those of sentencepiece_model.proto.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from appliance.errors import BadModelFile, UnsupportedModel
from appliance.text.vocabulary import TokenKind

MAX_MODEL_BYTES = 64 << 20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_UNIGRAM, _BPE = 1, 2
_NUM_KINDS = len(TokenKind)


@dataclass(slots=True, kw_only=True)
class SentencePieceModel:
    """What the file says. Defaults are the format's own."""

    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: bytearray = field(default_factory=bytearray)
    model_type: int = _UNIGRAM
    unknown_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    charsmap: bytes = b""
    adds_prefix: bool = True
    removes_extra_spaces: bool = True

    @property
    def merges(self) -> bool:
        """Whether pieces come from merging, and not from the likeliest path."""
        return self.model_type == _BPE


def read_tokenizer_model(data: bytes) -> SentencePieceModel:
    """Parse a file. Raises BadModelFile, or UnsupportedModel for word and character models."""
    model = SentencePieceModel()
    try:
        for number, value in _fields(data):
            if number == 1 and isinstance(value, bytes):
                _add_piece(model, value)
            elif number == 2 and isinstance(value, bytes):
                _read_trainer(model, value)
            elif number == 3 and isinstance(value, bytes):
                _read_normalizer(model, value)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise _bad(f"it is cut off or no sentencepiece model ({error})") from error
    if not model.texts:
        raise _bad("it holds no pieces")
    if model.model_type not in (_UNIGRAM, _BPE):
        raise UnsupportedModel(
            f"'tokenizer.model' has the model type {model.model_type}; known are {_UNIGRAM} (unigram) and "
            f"{_BPE} (BPE)"
        )
    return model


def _add_piece(model: SentencePieceModel, data: bytes) -> None:
    text, score, kind = "", 0.0, int(TokenKind.NORMAL)
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            text = value.decode()
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3 and isinstance(value, int):
            kind = value
    if not 1 <= kind <= _NUM_KINDS:
        raise _bad(f"piece {len(model.texts)} has the kind {kind} and kinds are 1 to {_NUM_KINDS}")
    if score != score:
        raise _bad(f"piece {len(model.texts)} has a score that is no number")
    model.texts.append(text)
    model.scores.append(score)
    model.kinds.append(kind)


def _read_trainer(model: SentencePieceModel, data: bytes) -> None:
    for number, value in _fields(data):
        if not isinstance(value, int):
            continue
        if number == 3:
            model.model_type = value
        elif number == 40:
            model.unknown_id = _signed(value)
        elif number == 41:
            model.bos_id = _signed(value)
        elif number == 42:
            model.eos_id = _signed(value)


def _read_normalizer(model: SentencePieceModel, data: bytes) -> None:
    for number, value in _fields(data):
        if number == 2 and isinstance(value, bytes):
            model.charsmap = value
        elif number == 3:
            model.adds_prefix = bool(value)
        elif number == 4:
            model.removes_extra_spaces = bool(value)


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield each field's number and value. Raises IndexError, struct.error or BadModelFile."""
    position, size = 0, len(data)
    while position < size:
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _BYTES:
            length, position = _varint(data, position)
            if length > size - position:
                raise IndexError(f"a field of {length} bytes, and {size - position} remain")
            yield number, data[position : position + length]
            position += length
        elif wire == _VARINT:
            value, position = _varint(data, position)
            yield number, value
        elif wire == _FIXED32:
            yield number, struct.unpack_from("<f", data, position)[0]
            position += 4
        elif wire == _FIXED64:
            yield number, struct.unpack_from("<d", data, position)[0]
            position += 8
        else:
            raise _bad(f"a field has the unknown wire type {wire}")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise _bad("a number is longer than 64 bits")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _bad(message: str) -> BadModelFile:
    return BadModelFile(f"'tokenizer.model': {message}; download it again")
