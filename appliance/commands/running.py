"""`appliance ps` and `appliance stop`: what a running appliance has loaded, and unloading it."""

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

_SHOWN_STATES = ("loaded", "loading", "draining")


def ps(args: argparse.Namespace) -> int:
    """Print the models in memory. Raises NotRunning, Refused."""
    from appliance.commands.running_appliance import appliance_at

    with appliance_at(args) as appliance:
        models = [m for m in appliance.models() if m["state"] in _SHOWN_STATES and not m["base"]]
    if args.json:
        print(json.dumps(models, indent=2))
        return 0
    print(f"{'NAME':<32} {'STATE':<10} {'MEMORY':<10} {'REQUESTS':<9} UNTIL")
    for model in models:
        memory = f"{(model['weights_bytes'] + model['kv_pool_bytes']) / 2**20:.0f} MiB"
        print(f"{model['id']:<32} {model['state']:<10} {memory:<10} {model['requests']:<9} {_until(model)}")
    return 0


def stop(args: argparse.Namespace) -> int:
    """Unload models; answers under way end first. Raises NotRunning, Refused, UnknownModel."""
    from appliance.commands.running_appliance import appliance_at

    with appliance_at(args) as appliance:
        for name in args.models:
            appliance.unload(name)
            print(f"{name} is unloaded as soon as its answers have ended")
    return 0


def _until(model: Mapping[str, Any]) -> str:  # Any: JSON
    if model["state"] == "loading":
        return f"{model['detail']} {model['progress'] or 0:.0%}"
    if model["is_pinned"]:
        return "unloaded by name (pinned)"
    if model["expires_s"] is None:
        return "its place is needed"
    return f"unused for {max(0, model['expires_s'] - time.time()):.0f} s"
