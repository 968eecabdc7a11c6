"""Whose request this is, by the key that it brings, and which routes that key opens. Knows no handlers."""

import hmac
from dataclasses import dataclass
from hashlib import blake2b

from litestar.types import HTTPScope

from appliance.api_keys import ApiKey, KeyRing, Scope
from appliance.engine.sequence import ServiceClass
from appliance.errors import ApplianceError, ErrorKind
from appliance.server.error_responses import Unauthorized

# Where a scope's state holds its Access.
ACCESS_KEY = "appliance_access"
# The page and its files hold nothing secret; it asks for the key.
OPEN_PATHS = frozenset({"/", "/health", "/health/live"})
OPEN_BELOW = "/web/"
# What a key of scope inference opens; everything else, also what comes later, is the administrator's.
_INFERENCE_BELOW = ("/v1/",)
_INFERENCE_AT = frozenset(
    {
        "/api/chat",
        "/api/embed",
        "/api/embeddings",
        "/api/generate",
        "/api/ps",
        "/api/show",
        "/api/tags",
        "/api/version",
        "/apply-template",
        "/detokenize",
        "/docs",
        "/openapi.json",
        "/props",
        "/tokenize",
    }
)
# Figures without anybody's words: read by whoever may use the models.
_INFERENCE_LOOKS = frozenset({"/system/v1/events", "/system/v1/models", "/system/v1/snapshot"})


class ScopeTooSmall(ApplianceError):  # named like the family in errors.py
    """The key is known and does not open this route."""

    kind = ErrorKind.FORBIDDEN
    code = "insufficient_scope"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who asks. Without keys all are one local tenant who may do everything."""

    tenant: str = ""
    scope: Scope = "admin"
    service_class: ServiceClass | None = None  # None: as the request itself asks

    def class_for(self, asked: ServiceClass) -> ServiceClass:
        """The class of a request that asks for one: a key's own, or a lower one where that is asked for."""
        if self.service_class is None or asked is ServiceClass.BRONZE:
            return asked
        return self.service_class


LOCAL = Access()


def access_of(scope: HTTPScope) -> Access:
    """Who sent the request, as the gate found out."""
    found: Access = scope["state"].get(ACCESS_KEY, LOCAL)
    return found


class AccessRules:
    """Finds out who asks. `is_required`: nobody enters without a key."""

    def __init__(
        self, *, api_key: str | None = None, ring: KeyRing | None = None, is_required: bool = False
    ) -> None:
        """`api_key` is the one of the settings, which opens everything; the ring holds the stored ones."""
        self._api_key = None if api_key is None else api_key.encode()
        self._ring = ring
        self.is_required = is_required or api_key is not None

    def admit(self, scope: HTTPScope) -> Access:
        """Raises Unauthorized, ScopeTooSmall. Open paths and preflights ask for no key."""
        path = scope["path"].rstrip("/") or "/"
        access = self._access(_offered(scope))
        if access is None:
            if self.is_required and not _is_open(scope["method"], path):
                raise Unauthorized("the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")
            return LOCAL
        if access.scope != "admin" and not _is_for_inference(scope["method"], path):
            raise ScopeTooSmall(
                f"this API key is for inference and {path[:100]} needs one of scope admin; "
                "`appliance key create --scope admin` makes one"
            )
        return access

    def _access(self, offered: list[bytes]) -> Access | None:
        if len(offered) != 1:
            return None
        if self._api_key is not None and hmac.compare_digest(offered[0], self._api_key):
            return Access(tenant=blake2b(self._api_key, digest_size=16).hexdigest())
        key = self._ring.find(offered[0]) if self._ring is not None else None
        return None if key is None else _access_by(key)


def _access_by(key: ApiKey) -> Access:
    return Access(tenant=key.id, scope=key.scope, service_class=ServiceClass(key.service_class))


def _is_open(method: str, path: str) -> bool:
    return method == "OPTIONS" or path in OPEN_PATHS or path.startswith(OPEN_BELOW)


def _is_for_inference(method: str, path: str) -> bool:
    if _is_open(method, path) or path in _INFERENCE_AT:
        return True
    if method in ("GET", "HEAD") and path in _INFERENCE_LOOKS:
        return True
    return path.startswith(_INFERENCE_BELOW)


def _offered(scope: HTTPScope) -> list[bytes]:
    """The keys that a request brings: of Authorization, else of X-Api-Key."""
    authorization = [value for name, value in scope["headers"] if name == b"authorization"]
    if authorization:
        return [_bearer_token(value) for value in authorization]
    return [value for name, value in scope["headers"] if name == b"x-api-key"]


def _bearer_token(value: bytes) -> bytes:
    scheme, _, token = value.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
