"""Disk space, and the folders that must be written. Creates none of them."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from appliance.observe.doctor.finding import Finding, failed, passed, size, warned

_LOW_BYTES = 2**30  # below it a log, a history and a small model no longer fit together


def check_disk(models_dir: Path, missing_bytes: int) -> Finding:
    """Whether the models' folder has room for what is still to be downloaded (0: nothing)."""
    free = shutil.disk_usage(_existing(models_dir)).free
    summary = f"{size(free)} free at {models_dir}"
    if free < missing_bytes:
        return failed(
            "disk",
            f"{summary}, and the model to download has {size(missing_bytes)}",
            "delete models with `appliance rm`, or set --models-dir to a larger disk",
        )
    if free < _LOW_BYTES:
        return warned("disk", summary, "delete models with `appliance rm`, or make room")
    return passed("disk", summary)


def check_folders(folders: Mapping[str, Path]) -> list[Finding]:
    """One line for each folder that is written to: `folders` is use -> folder."""
    return [_check_folder(use, folder) for use, folder in folders.items()]


def _check_folder(use: str, folder: Path) -> Finding:
    name = f"{use} folder"
    existing = _existing(folder)
    try:
        # access(2) says yes to root on some network mounts where a write then fails: so write.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return failed(
            name,
            f"{folder} cannot be written: {existing}: {error.strerror or error}",
            f"give this user the right to write it, or set another ({_setting_of(use)})",
        )
    return passed(name, f"{folder} can be written" if existing == folder else f"{folder} can be made")


def _setting_of(use: str) -> str:
    return "--models-dir" if use == "models" else f"XDG_{use.upper()}_HOME"


def _existing(folder: Path) -> Path:
    """The folder itself or the nearest above it that is there."""
    return next((p for p in (folder, *folder.parents) if p.is_dir()), Path(folder.anchor or "."))
