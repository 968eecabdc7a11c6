"""Finished requests on the disk, for days: a small SQLite file, written in batches by a thread of its own.

Never blocks who adds. Holds no word of a request.
"""

import logging
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, fields
from pathlib import Path

from appliance.observe.batch_worker import BatchWorker
from appliance.observe.request_record import RequestRecord

KEPT_S = 7 * 86_400.0
MOST_ROWS = 200_000  # about 40 MB
_MOST_QUEUED = 10_000
_NAMES = tuple(field.name for field in fields(RequestRecord))
_CREATE = f"CREATE TABLE IF NOT EXISTS requests ({', '.join(_NAMES)})"
_INDEX = "CREATE INDEX IF NOT EXISTS requests_ended ON requests (ended_unix_s)"
_INSERT = f"INSERT INTO requests VALUES ({', '.join('?' * len(_NAMES))})"  # noqa: S608 (no user's words)
_SELECT = (
    f"SELECT {', '.join(_NAMES)} FROM requests WHERE ended_unix_s >= ? "  # noqa: S608 (no user's words)
    "ORDER BY ended_unix_s DESC LIMIT ?"
)
_log = logging.getLogger(__name__)


class RequestHistory:
    """Any thread may add; `start` begins to write, `close` writes what is left."""

    def __init__(self, path: Path, *, kept_s: float = KEPT_S, most_rows: int = MOST_ROWS) -> None:
        self._path = path
        self._kept_s = kept_s
        self._most_rows = most_rows
        self._worker = BatchWorker[RequestRecord]("history", self._try_write, most_queued=_MOST_QUEUED)

    @property
    def num_dropped(self) -> int:
        return self._worker.num_dropped

    def start(self) -> None:
        self._worker.start()

    def add(self, record: RequestRecord) -> None:
        self._worker.add(record)

    def close(self) -> None:
        self._worker.close()

    def since(self, unix_s: float, *, limit: int) -> list[RequestRecord]:
        """Written requests that ended then or later, newest first; none of a file that cannot be read."""
        if not self._path.exists():
            return []
        try:
            with closing(sqlite3.connect(self._path, timeout=1.0)) as connection:
                rows = connection.execute(_SELECT, (unix_s, limit)).fetchall()
        except sqlite3.Error as error:  # another version's columns too, until the first is written
            _log.warning("the history of requests is not read: %s (%s)", error, self._path)
            return []
        return [RequestRecord(**dict(zip(_NAMES, row, strict=True))) for row in rows]

    def _try_write(self, records: list[RequestRecord]) -> bool:
        try:
            self._write(records)
        except (OSError, sqlite3.Error) as error:
            _log.warning("the history of requests is not written: %s (%s)", error, self._path)
            return False
        return True

    def _write(self, records: Sequence[RequestRecord]) -> None:
        """Add a batch and drop what is too old or too much, in one transaction."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=5.0)) as connection:
            _prepare(connection)
            with connection:
                connection.executemany(_INSERT, map(astuple, records))
                oldest_s = time.time() - self._kept_s
                connection.execute("DELETE FROM requests WHERE ended_unix_s < ?", (oldest_s,))
                connection.execute(
                    "DELETE FROM requests WHERE rowid <= (SELECT max(rowid) FROM requests) - ?",
                    (self._most_rows,),
                )


def _prepare(connection: sqlite3.Connection) -> None:
    """A table of another version's columns begins anew: it is a history, no ledger."""
    columns = [row[1] for row in connection.execute("PRAGMA table_info(requests)")]
    if columns and tuple(columns) != _NAMES:
        connection.execute("DROP TABLE requests")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(_CREATE)
    connection.execute(_INDEX)
    connection.commit()
