"""The settings: whether they can be read, who else can read the key in them, names that mean nothing."""

import difflib
import stat
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from appliance.config import ENVIRONMENT_PREFIX
from appliance.errors import BadSetting
from appliance.observe.doctor.finding import Finding, failed, passed, warned

# Read by the launcher and the packaged program, not settings.
_OTHER_VARIABLES = {"APPLIANCE_EXECUTABLE", "APPLIANCE_UNPACK_TO"}


def check_settings(file: Path, problem: BadSetting | None) -> Finding:
    """Say what `serve` would say of the flags, the environment and the file."""
    if problem is not None:
        return failed("settings", problem.message, f"correct it, or delete it from {file}")
    if not file.is_file():
        return passed("settings", f"there is no {file}; the defaults, the environment and the flags hold")
    if _has_key(file) and _is_open_to_others(file):
        return warned("settings", f"{file} holds an API key and other users may read it", f"chmod 600 {file}")
    return passed("settings", f"{file} is read")


def check_environment(environment: Mapping[str, str], names: Collection[str]) -> Finding:
    """Find variables that look like settings and are none: a misspelt one is silently ignored."""
    known = {ENVIRONMENT_PREFIX + name.upper() for name in names}
    given = sorted(v for v in environment if v.startswith(ENVIRONMENT_PREFIX) and v not in _OTHER_VARIABLES)
    unknown = [v for v in given if v not in known]
    if not unknown:
        return passed("environment", f"{len(given)} settings in it: {', '.join(given) or 'none'}")
    close = difflib.get_close_matches(unknown[0], known, n=1)
    return warned(
        "environment",
        f"{', '.join(unknown)}: no such setting, so it does nothing",
        f"write {close[0]}" if close else "`appliance serve --help` lists the settings",
    )


def _has_key(file: Path) -> bool:
    try:
        text = file.read_text("utf-8", "replace")
    except OSError:
        return False
    return any(line.strip().replace("_", "-").startswith("api-key") for line in text.splitlines())


def _is_open_to_others(file: Path) -> bool:
    return sys.platform != "win32" and bool(file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
