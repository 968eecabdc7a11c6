"""`appliance dashboard`: attach to a running appliance."""

import argparse

from appliance.commands.settings_args import settings_from


def dashboard(args: argparse.Namespace) -> int:
    """Show the appliance at the given address, by default the one these settings would start."""
    from tui.run import run_dashboard

    settings = settings_from(args)
    url = args.url or f"http://{settings.host}:{settings.port}"
    return run_dashboard(url if "://" in url else f"http://{url}", settings.api_key)
