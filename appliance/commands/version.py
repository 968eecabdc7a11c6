"""`appliance version`."""

import argparse
import platform
import sys

from appliance import __version__


def version(args: argparse.Namespace) -> int:
    print(f"inference-appliance {__version__} (Python {platform.python_version()}, {platform.machine()})")
    if args.verbose:
        _print_parts()
    return 0


def _print_parts() -> None:
    from appliance import installation, paths

    print(f"program   {paths.executable_file() or sys.executable}")
    print(f"files     {paths.resource_root()}")
    for name, folder in (
        ("models", paths.models_dir()),
        ("settings", paths.settings_file()),
        ("cache", paths.cache_dir()),
        ("logs", paths.log_dir()),
    ):
        print(f"{name:<9} {folder}")
    digest = installation.payload_sha256()
    if digest:
        print(f"build     {digest}")
    model_id = installation.shipped_model_id()
    if model_id:
        print(f"inside    {model_id}")
    for name, number in installation.components():
        print(f"          {name} {number}")
