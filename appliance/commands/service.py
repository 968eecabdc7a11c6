"""`appliance service`: installed, looked at, removed, or only shown."""

import argparse

from appliance import paths
from appliance.__main__ import build_parser
from appliance.commands.settings_args import settings_from
from appliance.service import service_of_this_system


def service(args: argparse.Namespace) -> int:
    """Do it and say what comes next. Raises ServiceError, or BadSetting for what `serve` would refuse."""
    settings = settings_from(build_parser().parse_args(["serve", *args.arguments]))
    command = [*paths.program(), "serve", "--no-dashboard", *args.arguments]
    address = f"{settings.host}:{settings.port}"
    managed = service_of_this_system(command, address=address, is_system=args.system)
    match args.action:
        case "install":
            print(managed.install())
        case "status":
            print(managed.status())
        case "uninstall":
            print(managed.uninstall())
        case _:
            for path, text in managed.files().items():
                print(f"# {path}\n{text}")
    return 0
