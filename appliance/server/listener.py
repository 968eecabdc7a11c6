"""Takes the address before anything is loaded; says who has it when somebody does. Knows no routes."""

import errno
import http.client
import os
import socket
import sys
from contextlib import closing

import psutil

from appliance.errors import BadSetting, PortTaken

SERVER_NAME = "inference-appliance"  # our Server header
_Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_BACKLOG = 512
_FIRST_PASSED_FILE = 3  # systemd's convention
_PROBE_TIMEOUT_S = 0.6


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket: one passed by systemd as it is, else a new one; port 0 takes a free one.

    It listens at once: until then the system would let another process take the same address. Raises
    PortTaken, BadSetting.
    """
    inherited = _inherited()
    if inherited is not None:
        return inherited
    family, address = _resolve(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        _allow_quick_restart(listener)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _explain(error, host, port) from error
    listener.setblocking(False)
    return listener


def _inherited() -> socket.socket | None:
    """The socket that systemd listens on for us; connections wait in it while the service restarts.

    https://www.freedesktop.org/software/systemd/man/latest/sd_listen_fds.html
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)  # not for our children
    listener = socket.socket(fileno=_FIRST_PASSED_FILE)
    listener.setblocking(False)
    listener.set_inheritable(False)
    return listener


def url_of(listener: socket.socket, *, scheme: str = "http") -> str:
    """The address that a client on this machine uses."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{_in_url(_reachable(host))}:{port}"


def numeric(host: str, port: int) -> tuple[str, str]:
    """The address that `bind` takes, as systemd writes it, and the one that a client on this machine uses.

    Raises BadSetting.
    """
    _, address = _resolve(host, port)
    found = str(address[0])
    return f"{_in_url(found)}:{port}", f"{_in_url(_reachable(found))}:{port}"


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, _Address]:
    name = host.strip().removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise BadSetting(f"--host {host} is no address of this machine: {error}", param="host") from error
    # A name such as localhost may mean both; clients that know one know version 4.
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, address


def _allow_quick_restart(listener: socket.socket) -> None:
    """Closed connections of the last run must not hold the port; on Windows this option means theft."""
    if sys.platform == "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _explain(error: OSError, host: str, port: int) -> PortTaken | BadSetting:
    if error.errno == errno.EADDRINUSE:
        return _port_taken(host, port)
    if error.errno in (errno.EACCES, errno.EPERM):
        return BadSetting(
            f"--port {port} may not be used by this user; choose one from 1024 on", param="port"
        )
    return BadSetting(f"--host {host} cannot be listened on: {error.strerror}", param="host")


def _port_taken(host: str, port: int) -> PortTaken:
    owner = _owner_of(port)
    by = f" by {owner}" if owner else ""
    url = f"http://{_in_url(_reachable(host))}:{port}"
    if is_appliance(_reachable(host), port):
        return PortTaken(
            f"{host}:{port} is taken{by}, and an appliance answers there; "
            f"watch it with `appliance dashboard --url {url}`, or start this one with another --port",
            appliance_url=url,
        )
    return PortTaken(f"{host}:{port} is taken{by}; stop that program, or choose another --port (0: any free)")


def is_appliance(host: str, port: int) -> bool:
    """Whether an appliance answers there, ready or not."""
    with closing(http.client.HTTPConnection(host, port, timeout=_PROBE_TIMEOUT_S)) as connection:
        try:
            connection.request("GET", "/health")
            response = connection.getresponse()
        except (OSError, http.client.HTTPException):
            return False
        return (response.getheader("server") or "").startswith(SERVER_NAME)


def _owner_of(port: int) -> str | None:
    """Name and id of the process that listens on a port, where this user may know."""
    try:
        connections = psutil.net_connections(kind="tcp")
        pids = [c.pid for c in connections if c.status == psutil.CONN_LISTEN and c.laddr[1:2] == (port,)]
        pid = next((pid for pid in pids if pid), None)
        return None if pid is None else f"{psutil.Process(pid).name()} (process {pid})"
    except (psutil.Error, OSError):
        return None


def _reachable(host: str) -> str:
    name = host.strip().removeprefix("[").removesuffix("]")
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)  # noqa: S104  # compared, not bound


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
