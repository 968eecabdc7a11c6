"""`appliance version`."""

import argparse
import platform

from appliance import __version__


def version(_: argparse.Namespace) -> int:
    print(f"inference-appliance {__version__} (Python {platform.python_version()}, {platform.machine()})")
    return 0
