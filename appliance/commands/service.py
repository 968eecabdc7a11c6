"""`appliance service`: installed, looked at, removed, or only shown."""

import argparse
import time

import httpx

from appliance import paths
from appliance.__main__ import build_parser
from appliance.commands.settings_args import settings_from
from appliance.service import ServiceError, service_of_this_system

# A first start unpacks, which takes long on a slow disk.
_FIRST_ANSWER_S = 90.0
_RETRY_S = 0.3


def service(args: argparse.Namespace) -> int:
    """Do it and say what comes next. Raises ServiceError, or BadSetting for what `serve` would refuse."""
    settings = settings_from(build_parser().parse_args(["serve", *args.arguments]))
    command = [*paths.program(), "serve", "--no-dashboard", *args.arguments]
    address = f"{settings.host}:{settings.port}"
    managed = service_of_this_system(command, address=address, is_system=args.system)
    match args.action:
        case "install":
            said = managed.install()
            _wait_for_an_answer(f"{'https' if settings.tls_cert else 'http'}://{address}")
            print(said)
        case "status":
            print(managed.status())
        case "uninstall":
            print(managed.uninstall())
        case _:
            for path, text in managed.files().items():
                print(f"# {path}\n{text}")
    return 0


def _wait_for_an_answer(url: str) -> None:
    deadline = time.monotonic() + _FIRST_ANSWER_S
    # Nothing is told to it, and its certificate may name another address.
    with httpx.Client(trust_env=False, verify=False, timeout=_FIRST_ANSWER_S) as http:  # noqa: S501
        while time.monotonic() < deadline:
            try:
                if http.get(f"{url}/health/live").is_success:
                    return
            except httpx.TransportError:
                time.sleep(_RETRY_S)
    raise ServiceError(
        f"installed, but nothing answers at {url} after {_FIRST_ANSWER_S:.0f} s; its log says why, and "
        "`appliance service uninstall` takes it back"
    )
