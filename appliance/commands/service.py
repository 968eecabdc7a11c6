"""`appliance service`: installed, looked at, removed, or only shown."""

import argparse
import http.client
import json
import ssl
import time
from pathlib import Path

from appliance import paths
from appliance.__main__ import build_parser
from appliance.commands.settings_args import settings_from
from appliance.errors import BadSetting
from appliance.server.listener import bind, numeric
from appliance.service import ServiceError, service_of_this_system

# A first start unpacks, which takes long on a slow disk.
_FIRST_START_S = 90.0
_LOG_SAYS_WHY = "its log says why, and `appliance service uninstall` takes it back"
_RETRY_S = 0.3


def service(args: argparse.Namespace) -> int:
    """Do it and say what comes next. Raises ServiceError, or BadSetting for what `serve` would refuse."""
    arguments = [_absolute(argument) for argument in args.arguments]
    settings = settings_from(build_parser().parse_args(["serve", *arguments]))
    if settings.port == 0:
        raise BadSetting("--port 0 takes any free port; a service needs one that stays", param="port")
    command = [*paths.program(), "serve", "--no-dashboard", *arguments]
    address, reachable = numeric(settings.host, settings.port)
    managed = service_of_this_system(command, address=address, is_system=args.system)
    match args.action:
        case "install":
            if not any(path.is_file() for path in managed.files()):
                bind(settings.host, settings.port).close()  # names who has the port, where somebody has
            said = managed.install()
            has_tls = settings.tls_cert is not None
            note = _wait_until_ready(reachable, has_tls=has_tls)
            print(f"running at {'https' if has_tls else 'http'}://{reachable}; {said}{note}")
        case "status":
            print(managed.status())
        case "uninstall":
            print(managed.uninstall())
        case _:
            for path, text in managed.files().items():
                print(f"# {path}\n{text}")
    return 0


def _absolute(argument: str) -> str:
    """An argument for a program that starts in another folder: files keep meaning the same ones."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    is_file = bool(value) and not value.startswith("-") and Path(value).exists()
    return option + equals + (str(Path(value).resolve()) if is_file else value)


def _wait_until_ready(address: str, *, has_tls: bool) -> str:
    """What is worth telling of its start. Raises ServiceError if it ends at once, or never answers."""
    deadline = time.monotonic() + _FIRST_START_S
    connection = _connection(address, has_tls=has_tls)
    doing = ""
    while time.monotonic() < deadline:
        try:
            connection.request("GET", "/health")
            health = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            if doing:
                raise ServiceError(f"installed, but it ended while {doing}; {_LOG_SAYS_WHY}") from None
        else:
            connection.auto_open = 0  # the next one to answer would be another process
            if health["status"] == "ok":
                return ""
            doing = health["detail"] or health["phase"]
        time.sleep(_RETRY_S)
    if doing:
        return f"\nIt is not ready yet: {doing}"
    raise ServiceError(
        f"installed, but nothing answers at {address} after {_FIRST_START_S:.0f} s; {_LOG_SAYS_WHY}"
    )


def _connection(address: str, *, has_tls: bool) -> http.client.HTTPConnection:
    if not has_tls:
        return http.client.HTTPConnection(address, timeout=_FIRST_START_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nothing is told to it, and its certificate may name another address
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(address, timeout=_FIRST_START_S, context=context)
