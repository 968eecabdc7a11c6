"""From parsed flags to Settings. Knows argparse; decides no value."""

import argparse
from dataclasses import fields
from pathlib import Path

from appliance import paths
from appliance.config import Settings, resolve


def settings_from(args: argparse.Namespace) -> Settings:
    """Merge settings file, environment and flags. Raises BadSetting."""
    given = {f.name: getattr(args, f.name, None) for f in fields(Settings)}
    flags = {name: raw for name, raw in given.items() if raw is not None}
    is_named = getattr(args, "settings", None) is not None
    return resolve(flags, settings_file=settings_file_of(args), must_exist=is_named)


def settings_file_of(args: argparse.Namespace) -> Path:
    """The file that a command reads its settings from, there or not."""
    named = getattr(args, "settings", None)
    return Path(named) if named else paths.settings_file()
