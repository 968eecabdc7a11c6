"""Lets in who may enter: loopback names without a key, everybody who has the key with one. Knows no routes.

Stands before the framework, so that unknown paths and every method are covered by the same rule.
"""

import hmac
import ipaddress
from hashlib import blake2b

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from appliance.errors import ApplianceError, BadSetting
from appliance.server.error_responses import ForeignHost, Unauthorized, error_headers, error_json, status_of

# Set in a scope's state: whose request this is. Without keys all belong to one local tenant.
TENANT_KEY = "appliance_tenant"
OPEN_PATHS = frozenset({"/health", "/health/live"})


def check_exposure(host: str, api_key: str | None) -> None:
    """Raise BadSetting where the address can be reached by others and no key protects it."""
    if api_key is None and not is_loopback(host):
        raise BadSetting(
            f"--host {host} can be reached from other machines and no API key is set; "
            "set --api-key, or listen on 127.0.0.1",
            param="host",
        )


def is_loopback(host: str) -> bool:
    """Whether a host name or address, IPv6 in brackets or not, can only be this machine."""
    name = host.strip().lower().removeprefix("[").removesuffix("]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(host_header: str) -> str:
    """The name in a Host header, without its port: `[::1]:80` gives `::1`."""
    text = host_header.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


class Gate:
    """An ASGI application in front of another one."""

    def __init__(self, app: ASGIApp, *, api_key: str | None) -> None:
        self._app = app
        self._api_key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            try:
                self._check(scope)
            except ApplianceError as error:
                await _refuse(error, scope, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: HTTPScope) -> None:
        if self._api_key is None:
            _check_host(scope)
            scope["state"][TENANT_KEY] = ""
        elif scope["method"] != "OPTIONS" and (scope["path"].rstrip("/") or "/") not in OPEN_PATHS:
            _check_key(scope, self._api_key)
            scope["state"][TENANT_KEY] = blake2b(self._api_key, digest_size=16).hexdigest()


def _check_host(scope: HTTPScope) -> None:
    """A web page whose name was rebound to this machine still sends its own name."""
    for value in _values(scope, b"host"):
        name = host_name(value.decode("latin-1"))
        if not is_loopback(name):
            raise ForeignHost(
                f"this appliance answers to localhost and 127.0.0.1, not to '{name[:100]}'; "
                "use one of those, or start it with --host and --api-key"
            )


def _check_key(scope: HTTPScope, key: bytes) -> None:
    authorization = _values(scope, b"authorization")
    offered = [_bearer_token(value) for value in authorization] or _values(scope, b"x-api-key")
    if len(offered) != 1 or not hmac.compare_digest(offered[0], key):
        raise Unauthorized("the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")


def _bearer_token(value: bytes) -> bytes:
    scheme, _, token = value.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _values(scope: HTTPScope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


async def _refuse(error: ApplianceError, scope: HTTPScope, send: Send) -> None:
    body = error_json(error, scope["path"])
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
    start: Message = {"type": "http.response.start", "status": status_of(error), "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})
