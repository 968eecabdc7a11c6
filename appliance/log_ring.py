"""The last log lines, kept in memory for the dashboard. Knows nobody who writes or reads them."""

import logging
import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice

from appliance.observe.request_context import current_request

_NUM_LINES = 1000  # about 300 KB when every line is long
_MAX_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """`number` counts from 1 since the start; `at_s` is in Unix seconds."""

    number: int
    at_s: float
    level: str
    logger: str
    message: str
    request_id: str = ""  # of the request that was served when it was logged


def request_id_of(record: logging.LogRecord) -> str:
    """The id that the line was given, else that of the request being served here, else nothing."""
    context = current_request()
    given = vars(record).get("request_id", context.request_id if context else "")
    return str(given)


class LogRing(logging.Handler):
    """A handler that keeps the newest `_NUM_LINES` lines and forgets the rest."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[LogLine] = deque(maxlen=_NUM_LINES)
        self._num_seen = 0
        self._ring_lock = threading.Lock()
        self._traceback = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one line, cut at `_MAX_CHARS`, with the traceback where there is one."""
        try:
            message = self._traceback.format(record)[:_MAX_CHARS]
        except Exception:  # a log call with wrong arguments must not end who made it
            self.handleError(record)
            return
        with self._ring_lock:
            self._num_seen += 1
            line = LogLine(
                number=self._num_seen,
                at_s=record.created,
                level=record.levelname.lower(),
                logger=record.name,
                message=message,
                request_id=request_id_of(record),
            )
            self._lines.append(line)

    def after(self, number: int) -> list[LogLine]:
        """The kept lines whose number is greater, oldest first."""
        with self._ring_lock:
            first = max(number - (self._num_seen - len(self._lines)), 0)
            return list(islice(self._lines, first, None))
