"""The history of requests on the disk."""

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.observe.history import RequestHistory
from observe.test_request_ring import RECORD

NOW = replace(RECORD, ended_unix_s=time.time())


def written(path: Path, *records: object, **limits: float) -> RequestHistory:
    history = RequestHistory(path, **limits)
    for record in records:
        history.add(record)
    history.start()
    history.close()
    return history


def test_what_was_added_is_there_after_the_end_and_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.sqlite"
    later = replace(NOW, request_id="id-2", ended_unix_s=NOW.ended_unix_s + 1, ttft_s=None)
    assert written(path).since(0, limit=10) == []
    assert not path.exists()
    assert written(path, NOW).since(0, limit=10) == [NOW]
    assert written(path, later).since(0, limit=10) == [later, NOW]
    assert written(path).since(NOW.ended_unix_s + 0.5, limit=10) == [later]


def test_old_ones_and_too_many_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    old = replace(NOW, request_id="old", ended_unix_s=NOW.ended_unix_s - 200_000)
    assert written(path, old, NOW, kept_s=100_000).since(0, limit=10) == [NOW]
    many = [replace(NOW, request_id=f"id-{i}") for i in range(20)]
    assert len(written(path, *many, most_rows=5).since(0, limit=100)) == 5


def test_a_table_of_other_columns_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE requests (a, b)")
        connection.execute("INSERT INTO requests VALUES (1, 2)")
        connection.commit()
    assert written(path).since(0, limit=10) == []
    assert written(path, NOW).since(0, limit=10) == [NOW]


def test_a_file_that_is_no_history_is_none_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"not a database" * 100)
    assert written(path).since(0, limit=10) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_place_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    written(tmp_path / "file" / "history.sqlite", NOW)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_nobody_waits_for_a_writer_that_is_behind(tmp_path: Path) -> None:
    history = RequestHistory(tmp_path / "history.sqlite")
    for _ in range(10_005):
        history.add(NOW)
    assert history.num_dropped == 5
