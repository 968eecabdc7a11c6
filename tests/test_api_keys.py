"""API keys: shown once, kept as hashes that only the user can read, gone when revoked."""

import signal
import stat
import sys
from pathlib import Path

import pytest

from appliance import api_keys
from appliance.__main__ import main
from appliance.api_keys import KeyFile, KeyRing, NewKey, UnknownKey
from appliance.commands import keys
from appliance.errors import BadSetting


def make(file: KeyFile, name: str = "clinic") -> NewKey:
    return file.create(name=name, scope="inference", service_class="gold")


def test_a_key_is_found_by_its_secret_alone(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "config" / "keys.json")
    first, second = make(file, "first"), make(file, "second")
    ring = KeyRing(file)
    assert ring.find(first.secret.encode()) == first.key
    assert ring.find(second.secret.encode()) == second.key
    for wrong in (first.key.id, first.key.sha256, first.secret[:-1], first.secret + "x", ""):
        assert ring.find(wrong.encode()) is None


def test_the_file_holds_no_secret_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made = make(KeyFile(path))
    assert made.secret.encode() not in path.read_bytes()
    assert made.secret[-20:].encode() not in path.read_bytes()
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]


def test_a_revoked_key_opens_nothing(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    kept, gone = make(file, "kept"), make(file, "gone")
    assert file.revoke("gone") == gone.key
    ring = KeyRing(file)
    assert ring.find(gone.secret.encode()) is None
    assert ring.find(kept.secret.encode()) == kept.key
    with pytest.raises(UnknownKey, match="key list"):
        file.revoke("gone")


@pytest.mark.parametrize("name", ["", "  ", "a" * 61, "a\nb", "taken"])
def test_a_name_that_cannot_be_told_apart_is_refused(tmp_path: Path, name: str) -> None:
    file = KeyFile(tmp_path / "keys.json")
    make(file, "taken")
    with pytest.raises(BadSetting, match="name"):
        make(file, name)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"keys": [{"id": 1}]}', b"\xff"])
def test_a_damaged_file_is_named_and_never_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    with pytest.raises(BadSetting, match=r"keys\.json"):
        make(KeyFile(path))
    assert path.read_bytes() == content


def test_a_full_disk_is_told_as_such_and_keeps_the_keys_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit on the size of files stands in for the disk: the write of a longer file fails there."""
    resource = pytest.importorskip("resource", reason="only POSIX limits the size of files")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["key", "create", "--name", "first"]) == 0
    capsys.readouterr()
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        assert main(["key", "create", "--name", "second"]) == 9
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "cannot be written" in capsys.readouterr().err
    assert main(["key", "list"]) == 0
    listed = capsys.readouterr().out
    assert "first" in listed
    assert "second" not in listed
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())  # nothing half-written stays
    assert kept.name == "keys.json"


def test_the_command_line_offers_every_scope_and_class() -> None:
    assert keys.SCOPES == api_keys.SCOPES
    assert keys.CLASSES == api_keys.CLASSES


def test_the_commands_create_list_and_revoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["key", "create", "--scope", "admin", "--class", "gold", "--name", "desk"]) == 0
    secret = capsys.readouterr().out.splitlines()[0]
    assert main(["key", "list"]) == 0
    listed = capsys.readouterr().out
    assert "desk" in listed
    assert "admin" in listed
    assert secret not in listed
    assert main(["key", "revoke", "desk"]) == 0
    assert main(["key", "revoke", "desk"]) == 4
