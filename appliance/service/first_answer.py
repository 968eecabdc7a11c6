"""Waiting for a service that was just started: it answers, goes on loading, or has ended. HTTP only."""

import http.client
import json
import ssl
import time
from contextlib import closing

from appliance.service.service import ServiceError

# A first start unpacks, which takes long on a slow disk.
FIRST_START_S = 90.0
_RETRY_S = 0.3
_LOG_SAYS_WHY = "its log says why, and `appliance service uninstall` takes it back"


def wait_until_ready(address: str, *, has_tls: bool, within_s: float = FIRST_START_S) -> str:
    """What is worth telling of its start. Raises ServiceError if it ends at once, or never answers."""
    with closing(_connection(address, has_tls=has_tls, timeout_s=within_s)) as connection:
        doing = _follow(connection, deadline=time.monotonic() + within_s)
    if doing is None:
        return ""
    if doing:
        return f"\nIt is not ready yet: {doing}"
    raise ServiceError(f"installed, but nothing answers at {address} after {within_s:.0f} s; {_LOG_SAYS_WHY}")


def _follow(connection: http.client.HTTPConnection, *, deadline: float) -> str | None:
    """What it did at the deadline, empty if it never answered; None if it is ready. Raises ServiceError."""
    doing = ""
    while time.monotonic() < deadline:
        try:
            connection.request("GET", "/health")
            health = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            if doing:
                raise ServiceError(f"installed, but it ended while {doing}; {_LOG_SAYS_WHY}") from None
            connection.close()
        else:
            connection.auto_open = 0  # the next one to answer would be another process
            if health["status"] == "ok":
                return None
            if health["phase"] == "failed":
                raise ServiceError(
                    f"installed and running, but it cannot serve: {health['detail']} "
                    "(mended without a change of flags: `appliance service install` again)"
                )
            doing = health["detail"] or health["phase"]
        time.sleep(_RETRY_S)
    return doing


def _connection(address: str, *, has_tls: bool, timeout_s: float) -> http.client.HTTPConnection:
    if not has_tls:
        return http.client.HTTPConnection(address, timeout=timeout_s)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nothing is told to it, and its certificate may name another address
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(address, timeout=timeout_s, context=context)
