"""The support archive: findings, versions, settings, the log's end, all redacted. Knows no check."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

from appliance.observe.doctor.redaction import Redaction

# The end of a log tells what went wrong last; the whole may be megabytes.
LOG_TAIL_BYTES = 200_000


def write_bundle(file: Path, texts: Mapping[str, str], logs: tuple[Path, ...], redaction: Redaction) -> None:
    """Write a zip of the texts by name, and the last part of each log that is there. Raises OSError."""
    beside = file.with_name(file.name + ".partial")
    beside.touch(mode=0o600)
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, redaction.apply(text))
        for log in logs:
            if (tail := _tail(log)) is not None:
                archive.writestr(f"logs/{log.name}", redaction.apply(tail))
    beside.replace(file)


def _tail(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None
