"""What a person is told at the first start: where things are kept, and which models fit this machine."""

import shlex
from pathlib import Path

from appliance import paths
from appliance.catalog import Catalog, ModelEntry
from appliance.config import Settings

_MARKER = "welcomed"
_MOST_OFFERED = 6
# Weights as packed, besides them the program, and a pool for a few conversations.
_NEEDED_PER_FILE_BYTE = 1.3
_NEEDED_BESIDES_BYTES = 1_000_000_000


def welcome(
    settings: Settings, catalog: Catalog, available_bytes: int, *, log_file: Path | None = None
) -> list[str]:
    """The lines to print; none after the first time. A disk that cannot be written is told each time.

    `log_file` is where the log goes, if it goes to a file.
    """
    marker = paths.state_dir() / _MARKER
    if marker.exists():
        return []
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError:
        pass  # nothing depends on it
    return [
        f"Models are kept in {paths.models_dir(settings.models_dir)}",
        f"Settings are read from {paths.settings_file()}" + (f"; the log is {log_file}" if log_file else ""),
        *_offer(catalog, available_bytes),
    ]


def fits(entry: ModelEntry, available_bytes: int) -> bool:
    """Whether a model of the catalogue should run in so much memory."""
    return entry.size_bytes * _NEEDED_PER_FILE_BYTE + _NEEDED_BESIDES_BYTES <= available_bytes


def _offer(catalog: Catalog, available_bytes: int) -> list[str]:
    fitting = sorted((e for e in catalog.entries if fits(e, available_bytes)), key=lambda e: -e.size_bytes)
    if not fitting:
        return []
    free, file = f"{available_bytes / 1e9:.1f} GB", paths.executable_file()
    program = shlex.quote(str(file)) if file else "appliance"
    return [
        f"With {free} of memory free these models fit; `{program} pull NAME` fetches one:",
        *(f"  {e.model_id}  {e.size_bytes / 1e9:.1f} GB  {e.description}" for e in fitting[:_MOST_OFFERED]),
    ]
