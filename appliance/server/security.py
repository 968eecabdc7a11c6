"""Lets in who may enter: loopback names without a key, everybody who has a key with one. Knows no routes.

Stands before the framework, so that unknown paths and every method are covered by the same rule. A page of
another origin gets in only where the operator allowed that origin.
"""

import ipaddress

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from appliance.errors import ApplianceError, BadSetting, InvalidRequest
from appliance.server.access import ACCESS_KEY, AccessRules
from appliance.server.cross_origin import OriginRules
from appliance.server.error_responses import ForeignHost, error_headers, error_json, status_of
from appliance.server.response_counts import ResponseCounts


def check_exposure(host: str, *, has_key: bool) -> None:
    """Raise BadSetting where the address can be reached by others and no key protects it."""
    if not has_key and not is_loopback(host):
        raise BadSetting(
            f"--host {host} can be reached from other machines and there is no API key; make one with "
            "`appliance key create`, set --api-key, or listen on 127.0.0.1",
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

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: AccessRules,
        hosts: frozenset[str] = frozenset(),
        origins: OriginRules | None = None,
        responses: ResponseCounts | None = None,
    ) -> None:
        """`hosts` are names by which a keyless appliance may be addressed besides loopback's."""
        self._app = app
        self._access = access
        self._hosts = hosts
        self._origins = origins or OriginRules()
        self._responses = responses or ResponseCounts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            send = self._origins.sender(scope, self._responses.sender(send))
            try:
                self._check(scope)
            except ApplianceError as error:
                await _refuse(error, scope, send)
                return
            if self._origins.is_preflight(scope):
                await self._origins.answer_preflight(scope, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: HTTPScope) -> None:
        if not self._access.is_required:
            _check_host(scope, self._hosts)
            self._origins.check(scope)
        scope["state"][ACCESS_KEY] = self._access.admit(scope)


def allowed_names(text: str | None) -> frozenset[str]:
    """Read the setting: host names, separated by commas. Raises BadSetting."""
    names = frozenset(name.strip().lower() for name in (text or "").split(",") if name.strip())
    wrong = next((name for name in names if host_name(name) != name or "/" in name), None)
    if wrong is not None:
        raise BadSetting(
            f"--allowed-hosts holds '{wrong[:100]}'; write names alone, such as box.lan",
            param="allowed_hosts",
        )
    return names


def _check_host(scope: HTTPScope, hosts: frozenset[str]) -> None:
    """A web page whose name was rebound to this machine still sends its own name."""
    values = _values(scope, b"host")
    if len(values) != 1 and scope["http_version"] == "1.1":
        raise InvalidRequest(f"the request has {len(values)} Host headers; send one")
    for value in values:
        name = host_name(value.decode("latin-1"))
        if not is_loopback(name) and name.lower() not in hosts:
            raise ForeignHost(
                f"this appliance answers to localhost and 127.0.0.1, not to '{name[:100]}'; "
                "use one of those, allow the name with --allowed-hosts, or start it with --host and --api-key"
            )


def _values(scope: HTTPScope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


async def _refuse(error: ApplianceError, scope: HTTPScope, send: Send) -> None:
    body = error_json(error, scope["path"])
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
    start: Message = {"type": "http.response.start", "status": status_of(error), "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})
