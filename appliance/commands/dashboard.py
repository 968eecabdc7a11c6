"""`appliance dashboard`: attach to a running appliance, on the screen, in sentences, or as JSON once."""

import argparse
import asyncio
import sys
from contextlib import suppress

from appliance.commands.settings_args import settings_from
from appliance.errors import BadSetting


def dashboard(args: argparse.Namespace) -> int:
    """Show the appliance at the given address, by default the one these settings would start."""
    settings = settings_from(args)
    url = args.url or f"http://{settings.host}:{settings.port}"
    url = url if "://" in url else f"http://{url}"
    if args.json or args.plain:
        with suppress(KeyboardInterrupt):
            return _tell(args, url, settings.api_key)
        return 0
    from tui.run import run_dashboard
    from tui.targets import Targets

    targets = Targets(ttft_s=_target_s(args, "ttft"), tpot_s=_target_s(args, "tpot"))
    return run_dashboard(url, settings.api_key, targets=targets)


def _tell(args: argparse.Namespace, url: str, api_key: str | None) -> int:
    from tui.client import ApplianceClient
    from tui.targets import Targets
    from tui.tell import Telling, tell

    telling = Telling(
        is_json=args.json,
        is_once=args.once,
        every_s=max(_number(args.every, "--every", "seconds"), 0.5),
        targets=Targets(ttft_s=_target_s(args, "ttft"), tpot_s=_target_s(args, "tpot")),
    )
    client = ApplianceClient(url, api_key)
    return asyncio.run(tell(client, telling, say=_say, complain=_complain))


def _say(text: str) -> None:
    print(text, flush=True)


def _complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _target_s(args: argparse.Namespace, name: str) -> float | None:
    text = getattr(args, f"{name}_target")
    return None if text is None else _number(text, f"--{name}-target", "milliseconds") / 1000


def _number(text: str, flag: str, unit: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise BadSetting(f"{flag} is {text}; give {unit}, a number above 0")
