"""Keeps what a long `tokenizer.json` comes to, so that it is ready at once the next time.

A file is known by the hash of its content, and what is kept carries a hash of its own: a damaged file is made
again, not believed. Knows how tables lie in a file; knows no tokenizer.
"""

import hashlib
import json
import logging
import struct
import sys
from array import array
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from appliance.errors import BadModelFile
from appliance.text.merge_table import MergeTable
from appliance.text.token_tables import TokenTables
from appliance.text.tokenizer_json import TokenizerJson

# Changed with everything that changes what the tables hold.
_MARK = b"tokens 1 " + sys.byteorder.encode()
_HASH_BYTES = 32
_LENGTH = struct.Struct("<Q")
# Between texts; a noncharacter, so in no honest one.
_BETWEEN = "\U0010ffff"
_NUM_PARTS = 7
_ENDING = ".tokens"
_MOST_BYTES = 64 << 20
MOST_FILES = 16
# What `unpack` raises for bytes that were not packed.
DAMAGE = (ValueError, struct.error, KeyError, BadModelFile)
logger = logging.getLogger(__name__)


def read_tokenizer_json(data: bytes, folder: Path | None) -> TokenizerJson:
    """Return the file of that content, from `folder` where it is kept there. Raises BadModelFile."""
    if folder is None:
        return TokenizerJson.parse(data)
    path = folder / f"{hashlib.sha256(data).hexdigest()}{_ENDING}"
    kept = _read(path)
    if kept is not None:
        return kept
    found = TokenizerJson.parse(data)
    packed = pack(found)
    if packed is not None:
        _write(path, packed)
    return found


def pack(content: TokenizerJson) -> bytes | None:
    """Return it as one run of bytes, None where it is too long or holds what cannot be kept."""
    tables, merges = content.tables, content.tables.merges
    try:
        texts = _BETWEEN.join(tables.texts).encode()
        parts = [json.dumps(content.rules).encode(), texts, tables.kinds]
    except (UnicodeEncodeError, RecursionError):  # a lone surrogate, or nested as no honest file is
        return None
    numbers = (tables.scores, *((merges.starts, merges.lengths, merges.ranks) if merges else (None,) * 3))
    parts += [b"" if array_ is None else array_.tobytes() for array_ in numbers]
    body = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    is_honest = texts.count(_BETWEEN.encode()) == len(tables.texts) - 1
    return body if is_honest and len(body) <= _MOST_BYTES else None


def unpack(body: bytes) -> TokenizerJson:
    """Return what was packed. Raises one of DAMAGE for anything else."""
    rules, texts, kinds, scores, *merges = _parts(body)
    tables = TokenTables(
        texts=tuple(texts.decode().split(_BETWEEN)),
        kinds=kinds,
        scores=_numbers("d", scores) if scores else None,
        merges=_merge_table(*merges) if merges[0] else None,
    )
    num_tokens = len(tables.texts)
    if len(kinds) != num_tokens or (tables.scores is not None and len(tables.scores) != num_tokens):
        raise ValueError("tables of different lengths")
    if tables.merges is not None and not tables.merges.is_whole(num_tokens):
        raise ValueError("a table of merges with holes")
    content = json.loads(rules)
    if not isinstance(content, dict):
        raise ValueError("rules that are no object")
    return TokenizerJson(content, tables)


def _parts(body: bytes) -> list[bytes]:
    parts, at = list[bytes](), 0
    for _ in range(_NUM_PARTS):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if length > len(body) - at:
            raise ValueError("cut off")
        parts.append(body[at : at + length])
        at += length
    if at != len(body):
        raise ValueError("more than was packed")
    return parts


def _merge_table(starts: bytes, lengths: bytes, ranks: bytes) -> MergeTable:
    return MergeTable(
        starts=_numbers("I", starts), lengths=_numbers("I", lengths), ranks=_numbers("I", ranks)
    )


def _numbers(kind: str, data: bytes) -> "array[Any]":  # Any: of the kind's type
    numbers: array[Any] = array(kind)
    numbers.frombytes(data)
    return numbers


def _read(path: Path) -> TokenizerJson | None:
    try:
        if path.stat().st_size > _MOST_BYTES + len(_MARK) + _HASH_BYTES:
            return None
        whole = path.read_bytes()
    except OSError:
        return None
    start = len(_MARK) + _HASH_BYTES
    body = whole[start:]
    if whole[:start] != _MARK + hashlib.sha256(body).digest():
        return None
    try:
        return unpack(body)
    except DAMAGE:
        return None


def _write(path: Path, body: bytes) -> None:
    """Keep it beside the newest others; a folder that cannot be written costs time only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(_MARK + hashlib.sha256(body).digest() + body)
        Path(part.name).replace(path)
        kept = sorted(path.parent.glob(f"*{_ENDING}"), key=lambda file: file.stat().st_mtime_ns)
        for file in kept[:-MOST_FILES]:
            file.unlink(missing_ok=True)
    except OSError as error:
        logger.info("the tokenizer is not kept in %s: %s", path.parent, error.strerror)
