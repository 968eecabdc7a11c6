"""Whether the address can be listened on. Knows no server: how to listen is passed in."""

import ipaddress
import socket
from collections.abc import Callable

from appliance.errors import ApplianceError, PortTaken
from appliance.observe.doctor.finding import Finding, failed, passed

Bind = Callable[[str, int], socket.socket]


def check_port(host: str, port: int, bind: Bind) -> Finding:
    """Take the address and give it back. One that an appliance holds is fine: it runs."""
    try:
        bind(host, port).close()
    except PortTaken as error:
        if error.appliance_url is not None:
            return passed("port", f"an appliance answers at {error.appliance_url}")
        return failed("port", *_split(error.message))
    except ApplianceError as error:
        return failed("port", *_split(error.message))
    return passed("port", f"{host}:{port} is free")


def check_exposure(host: str, *, has_key: bool) -> Finding:
    """Whether others on the network may come in, and only with a key."""
    if _is_loopback(host):
        return passed("exposure", "only this machine can connect")
    if has_key:
        return passed("exposure", f"{host} is open to the network; clients need the API key")
    return failed(
        "exposure",
        f"--host {host} is open to the network and no API key is set",
        "make a key with `appliance key create`, or listen on 127.0.0.1",
    )


def _split(message: str) -> tuple[str, str]:
    """What is wrong and the remedy: our errors put a semicolon between them."""
    wrong, _, remedy = message.partition("; ")
    return wrong, remedy or "choose another --host or --port"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
