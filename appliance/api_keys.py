"""The API keys of this machine: made, listed, revoked, found. Keeps hashes, never a key; knows no HTTP.

A key is 256 random bits, so one round of SHA-256 is enough: there is nothing to guess.
"""

import errno
import hashlib
import hmac
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from appliance.errors import ApplianceError, BadSetting, ErrorKind, StorageNotWritable

Scope = Literal["inference", "admin"]
ClassName = Literal["gold", "silver", "bronze"]
SCOPES: tuple[Scope, ...] = ("inference", "admin")
CLASSES: tuple[ClassName, ...] = ("gold", "silver", "bronze")
_PREFIX = "sk-local-"
_SECRET_BYTES = 32
_ID_HEX = 8
_MAX_NAME_CHARS = 60
# A change of the file is seen after so long.
_LOOK_EVERY_S = 1.0


class UnknownKey(ApplianceError):  # named like the family in errors.py
    """No stored key has this id or name."""

    kind = ErrorKind.NOT_FOUND
    code = "key_not_found"
    exit_code = 4


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of one key."""

    id: str
    name: str
    scope: Scope
    service_class: ClassName
    sha256: str
    created_s: float  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key on the one occasion when it can be read."""

    secret: str
    key: ApiKey


class _File(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[ApiKey] = []


class KeyFile:
    """The stored keys. `path` need not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[ApiKey, ...]:
        """Raises BadSetting where the file cannot be read or is not one of keys."""
        try:
            return tuple(msgspec.json.decode(self._path.read_bytes(), type=_File).keys)
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as error:
            raise BadSetting(
                f"the key file {self._path} cannot be read: {error}; delete it and create new keys"
            ) from error

    def create(self, *, name: str, scope: Scope, service_class: ClassName) -> NewKey:
        """Store a new key. Raises BadSetting for a bad or taken name, StorageNotWritable."""
        keys = self.read()
        _check_name(name, keys)
        secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        key = ApiKey(
            id=secrets.token_hex(_ID_HEX // 2),
            name=name,
            scope=scope,
            service_class=service_class,
            sha256=_hash(secret.encode()),
            created_s=time.time(),
        )
        self._write((*keys, key))
        return NewKey(secret=secret, key=key)

    def revoke(self, id_or_name: str) -> ApiKey:
        """Take a key away; a running appliance refuses it within a second.

        Raises UnknownKey, StorageNotWritable.
        """
        keys = self.read()
        found = next((key for key in keys if id_or_name in (key.id, key.name)), None)
        if found is None:
            raise UnknownKey(
                f"there is no key '{id_or_name[:_MAX_NAME_CHARS]}'; `appliance key list` shows ids and names"
            )
        self._write(tuple(key for key in keys if key is not found))
        return found

    def changed_ns(self) -> int:
        """When the file was last written; 0 where there is none."""
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0

    def _write(self, keys: tuple[ApiKey, ...]) -> None:
        """Whole or not at all, and never for a moment readable by others."""
        beside = self._path.with_suffix(f".{os.getpid()}.partial")
        data = msgspec.json.format(msgspec.json.encode(_File(keys=list(keys)))) + b"\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.unlink(missing_ok=True)
            with open(beside, "xb", opener=_private) as file:
                file.write(data)
            beside.replace(self._path)
        except OSError as error:
            with suppress(OSError):  # where it cannot be made it cannot be removed either
                beside.unlink(missing_ok=True)
            is_full = error.errno == errno.ENOSPC
            remedy = "free some space on its disk" if is_full else "set XDG_CONFIG_HOME to a folder that can"
            raise StorageNotWritable(
                f"the key file {self._path} cannot be written: {error.strerror}; {remedy}"
            ) from error


class KeyRing:
    """Finds the key that a client offers. Follows changes of the file; made for one thread."""

    def __init__(self, file: KeyFile) -> None:
        self._file = file
        self._keys = file.read()
        self._changed_ns = file.changed_ns()
        self._look_at_s = time.monotonic() + _LOOK_EVERY_S

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, secret: bytes) -> ApiKey | None:
        """Compare with every key, in a time that tells nothing of where they differ."""
        self._refresh()
        offered = _hash(secret)
        found = None
        for key in self._keys:
            if hmac.compare_digest(offered, key.sha256):
                found = key
        return found

    def _refresh(self) -> None:
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _LOOK_EVERY_S
        changed_ns = self._file.changed_ns()
        if changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            self._keys = self._read_or_none()

    def _read_or_none(self) -> tuple[ApiKey, ...]:
        """A file that cannot be read lets nobody in."""
        try:
            return self._file.read()
        except BadSetting:
            return ()


def _hash(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _check_name(name: str, keys: tuple[ApiKey, ...]) -> None:
    if not name.strip() or len(name) > _MAX_NAME_CHARS or not name.isprintable():
        raise BadSetting(
            f"--name is {name[:_MAX_NAME_CHARS]!r}; use 1 to {_MAX_NAME_CHARS} printable characters"
        )
    if any(name in (key.name, key.id) for key in keys):
        raise BadSetting(f"there is a key named '{name}' already; choose another --name, or revoke that one")
