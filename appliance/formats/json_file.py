"""Reads the JSON that lies beside a model: bounded, strict, with errors that name the file and the key."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from appliance.errors import BadModelFile

Json = Mapping[str, Any]  # Any: JSON
# Far above any configuration; tokenizers of 260,000 tokens have 35 MB and pass a limit of their own.
MAX_JSON_BYTES = 4 << 20


def read_json(path: Path, *, limit: int = MAX_JSON_BYTES) -> Json:
    """Return the object in a file. Raises BadModelFile naming the file and what is wrong with it."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes > limit:
            raise BadModelFile(f"'{path.name}' has {num_bytes} bytes and the limit is {limit}")
        return parse_object(path.read_bytes(), what=f"'{path.name}'")
    except OSError as error:
        raise BadModelFile(f"'{path}' cannot be read: {error.strerror or error}") from error


def parse_object(data: bytes, *, what: str) -> Json:
    """Return the JSON object in `data`, no key twice. Raises BadModelFile beginning with `what`."""
    try:
        # A byte-order mark is common in files edited on Windows.
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_distinct)
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{what} is not UTF-8 at byte {error.start}; download it again") from error
    except RecursionError as error:
        raise BadModelFile(f"{what} is nested too deeply") from error
    except _TwiceTheKeyError as error:
        raise BadModelFile(f"{what} holds the key '{error}' twice") from error
    except ValueError as error:
        raise BadModelFile(f"{what} is not JSON: {error}; download it again") from error
    if not isinstance(value, dict):
        raise BadModelFile(f"{what} holds a JSON {type(value).__name__} and must hold an object")
    return MappingProxyType(value)


class _TwiceTheKeyError(Exception):
    pass


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # Any: JSON
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceTheKeyError(f"{key:.80}")
            seen.add(key)
    return fields
