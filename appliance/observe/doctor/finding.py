"""What a check found, in one sentence, and the remedy. Knows no check."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How bad it is: PASS needs nothing, WARN serves but not at its best, FAIL does not serve."""

    PASS = "pass"  # noqa: S105  # a word of the report
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. `remedy` is empty only where nothing is wrong."""

    name: str
    status: Status
    summary: str
    remedy: str = ""


def passed(name: str, summary: str) -> Finding:
    return Finding(name=name, status=Status.PASS, summary=summary)


def warned(name: str, summary: str, remedy: str) -> Finding:
    return Finding(name=name, status=Status.WARN, summary=summary, remedy=remedy)


def failed(name: str, summary: str, remedy: str) -> Finding:
    return Finding(name=name, status=Status.FAIL, summary=summary, remedy=remedy)


def size(num_bytes: float) -> str:
    """Binary units, as memory is made: 512 MiB, 3.9 GiB."""
    return f"{num_bytes / 2**20:.0f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:.1f} GiB"
