"""Log lines for people or for machines. Knows where they go; knows nobody who writes them."""

import json
import logging
import logging.handlers
from pathlib import Path

from appliance.observe.request_context import current_request

_PLAIN = "%(asctime)s %(levelname)-7s %(message)s"
_FILE_BYTES = 5 * 2**20


# What every record has; the rest are fields that a line was given.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the line's fields, a traceback if any.

    What is logged while a request is served bears the request's id, and its trace's where it has one.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_request_fields(),
            **{name: value for name, value in vars(record).items() if name not in _USUAL},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _request_fields() -> dict[str, str]:
    context = current_request()
    if context is None:
        return {}
    fields = {"request_id": context.request_id}
    return fields | {"trace_id": context.parent.trace_id} if context.parent else fields


class PlainFormatter(logging.Formatter):
    """One line a record, before any traceback: names of files and fields may hold line ends."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        text = super().formatMessage(record)
        return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def configure_logs(*, as_json: bool, file: Path | None = None) -> None:
    """Send log lines to stderr, or to a rotating file while the dashboard has the terminal.

    A file that cannot be written leaves the appliance without a log, not without a start.
    """
    formatter = JsonFormatter() if as_json else PlainFormatter(_PLAIN, "%H:%M:%S")
    handler: logging.Handler = logging.NullHandler()
    if file is None:
        handler = logging.StreamHandler()
    else:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(file, maxBytes=_FILE_BYTES, backupCount=2)
        except OSError:
            pass
    handler.setFormatter(formatter)
    # A line that a full disk does not take is lost; a traceback in its place helps nobody.
    logging.raiseExceptions = False
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("httpx", "httpcore", "uvicorn.error", "filelock", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
