"""`appliance service`: installed, looked at, removed, or only shown."""

import argparse
from pathlib import Path

from appliance import paths
from appliance.__main__ import build_parser
from appliance.commands.settings_args import settings_from
from appliance.errors import BadSetting
from appliance.server.listener import bind, numeric
from appliance.service import service_of_this_system
from appliance.service.first_answer import wait_until_ready


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
            note = wait_until_ready(reachable, has_tls=has_tls)
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
