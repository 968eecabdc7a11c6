"""Joining, linking and digesting, and telling the disk's errors from the source's."""

import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.download.transfer import is_disk_full, join_streams, link_or_copy, sha256_of
from appliance.download.workspace import SourceError


@given(parts=st.lists(st.binary(max_size=300), max_size=6))
def test_joined_parts_are_their_concatenation(tmp_path_factory, parts):
    target = tmp_path_factory.mktemp("join") / "out"
    whole = b"".join(parts)
    join_streams((io.BytesIO(p) for p in parts), target, limit_bytes=len(whole), on_progress=lambda _: None)
    assert target.read_bytes() == whole
    assert sha256_of(target) == hashlib.sha256(whole).hexdigest()


def test_one_byte_too_many_is_refused(tmp_path):
    with pytest.raises(SourceError, match="more than the 4 bytes"):
        join_streams([io.BytesIO(b"12345")], tmp_path / "out", limit_bytes=4, on_progress=lambda _: None)


def test_full_disk_is_an_error_of_the_disk(tmp_path):
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        join_streams([io.BytesIO(b"x" * 100)], full, limit_bytes=100, on_progress=lambda _: None)
    assert is_disk_full(caught.value)


def test_unreadable_stream_is_an_error_of_the_source(tmp_path):
    class Broken(io.BytesIO):
        def read(self, _size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(SourceError, match="cannot be read: Input/output error"):
        join_streams([Broken()], tmp_path / "out", limit_bytes=9, on_progress=lambda _: None)


def test_link_shares_the_bytes_and_survives_the_origin(tmp_path):
    origin = tmp_path / "origin"
    origin.write_bytes(b"model")
    link_or_copy(origin, tmp_path / "copy", limit_bytes=5, on_progress=lambda _: None)
    origin.unlink()
    assert (tmp_path / "copy").read_bytes() == b"model"


def test_other_file_system_gets_a_copy(tmp_path):
    link_or_copy(Path("/proc/self/status"), tmp_path / "copy", limit_bytes=10**6, on_progress=lambda _: None)
    assert (tmp_path / "copy").read_bytes().startswith(b"Name:")


def test_missing_origin_is_an_error_of_the_source(tmp_path):
    with pytest.raises(SourceError, match="No such file"):
        link_or_copy(tmp_path / "absent", tmp_path / "copy", limit_bytes=5, on_progress=lambda _: None)
