"""Which web pages may use the appliance: their origins, preflights, and the headers that let them read.

Off unless configured. Credentials are never allowed: a key comes in a header that a page must know.
"""

import re
from dataclasses import dataclass

from litestar.types import HTTPScope, Message, Send

from appliance.errors import ApplianceError, BadSetting, ErrorKind

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._\-\[\]:]+")
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_METHODS = b"GET, HEAD, POST, DELETE, OPTIONS"
_MAX_AGE_S = b"600"
_EXPOSED = b"retry-after, request-id, www-authenticate, x-request-id"


class ForeignOrigin(ApplianceError):  # named like the family in errors.py
    """A web page that was not allowed asked."""

    kind = ErrorKind.FORBIDDEN
    code = "foreign_origin"


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginRules:
    """The allowed origins, lower-case; `*` in it allows all."""

    allowed: frozenset[str] = frozenset()

    @classmethod
    def from_text(cls, text: str | None) -> "OriginRules":
        """Read the setting: origins separated by commas, or `*`. Raises BadSetting."""
        origins = frozenset(
            part.strip().lower().rstrip("/") for part in (text or "").split(",") if part.strip()
        )
        wrong = next((origin for origin in origins if origin != "*" and not _ORIGIN.fullmatch(origin)), None)
        if wrong is not None:
            raise BadSetting(
                f"--allowed-origins holds '{wrong[:100]}'; write origins such as http://localhost:3000, or *",
                param="allowed_origins",
            )
        return cls(allowed=origins)

    def check(self, scope: HTTPScope) -> None:
        """Raise ForeignOrigin for a page of another origin that is not allowed: it must not act unseen."""
        for origin in _values(scope, b"origin"):
            if not self._is_allowed(origin) and not _is_own(scope, origin):
                raise ForeignOrigin(
                    f"pages of '{origin.decode('latin-1')[:100]}' may not use this appliance; "
                    "allow them with --allowed-origins"
                )

    def is_preflight(self, scope: HTTPScope) -> bool:
        """Whether a browser asks before it asks. Without a rule for its origin nobody is told anything."""
        asks = scope["method"] == "OPTIONS" and _values(scope, b"access-control-request-method")
        return bool(asks) and self._allowed_origin(scope) is not None

    async def answer_preflight(self, scope: HTTPScope, send: Send) -> None:
        """Allow whatever headers are asked for: each client library has its own."""
        headers = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", _MAX_AGE_S),
            (b"content-length", b"0"),
        ]
        wanted = b", ".join(_values(scope, b"access-control-request-headers"))
        if _HEADER_NAMES.fullmatch(wanted):
            headers.append((b"access-control-allow-headers", wanted))
        if _values(scope, b"access-control-request-private-network"):
            headers.append((b"access-control-allow-private-network", b"true"))
        start: Message = {"type": "http.response.start", "status": 204, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def sender(self, scope: HTTPScope, send: Send) -> Send:
        """Return a `send` that lets an allowed page read the answer."""
        origin = self._allowed_origin(scope)
        if origin is None:
            return send
        added = [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"Origin"),
        ]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *added]
            await send(message)

        return send_with_headers

    def _allowed_origin(self, scope: HTTPScope) -> bytes | None:
        """The one origin of the request as the answer should repeat it."""
        origins = _values(scope, b"origin")
        if len(origins) != 1 or not self._is_allowed(origins[0]):
            return None
        return b"*" if "*" in self.allowed else origins[0]

    def _is_allowed(self, origin: bytes) -> bool:
        return "*" in self.allowed or origin.decode("latin-1").lower() in self.allowed


def _is_own(scope: HTTPScope, origin: bytes) -> bool:
    """Whether the page came from this very address: its own page may use it."""
    own = {scheme + host.lower() for host in _values(scope, b"host") for scheme in (b"http://", b"https://")}
    return origin.lower() in own


def _values(scope: HTTPScope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]
