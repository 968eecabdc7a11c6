"""The `traceparent` header of W3C Trace Context: which trace a request belongs to. Knows no HTTP."""

import re
from dataclasses import dataclass
from typing import Self

# Versions after 00 may add fields behind a dash; ff is none.
_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceParent:
    """The caller's trace and span, in hexadecimal, and whether the caller records it."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Return None where there is none, or one that the standard says to ignore."""
        match = _FORM.fullmatch((text or "").strip())
        if match is None or (match[1] == "00" and match[5]):
            return None
        if not int(match[2], 16) or not int(match[3], 16):
            return None
        return cls(trace_id=match[2], span_id=match[3], is_sampled=bool(int(match[4], 16) & _SAMPLED))
