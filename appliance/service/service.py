"""What a service manager must be able to do, and which one this system has."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from appliance.errors import ApplianceError
from appliance.other_programs import environment_of_others


class ServiceError(ApplianceError):
    """The service manager is missing, or refused; the message holds its words and the remedy."""


class Service(Protocol):
    """A background service that starts with the system or the user's session."""

    def files(self) -> dict[Path, str]:
        """What installing writes: paths and contents."""

    def install(self) -> str:
        """Write the files, start the service now and at every start. Returns what a person does next."""

    def status(self) -> str:
        """The manager's own words. Raises ServiceError where it is not installed."""

    def uninstall(self) -> str:
        """Stop the service and remove its files."""


def service_of_this_system(command: Sequence[str], *, address: str, is_system: bool) -> Service:
    """The service manager of this system for `command`, which listens on `address`. Raises ServiceError."""
    if sys.platform == "darwin":
        from appliance.service.launchd import LaunchdService

        return LaunchdService(command, is_system=is_system)
    if sys.platform == "win32":
        from appliance.service.windows import WindowsService

        return WindowsService(command)
    from appliance.service.systemd import SystemdService

    return SystemdService(command, address=address, is_system=is_system)


def call(*command: str) -> str:
    """Run a manager's command. Raises ServiceError with what it said."""
    if shutil.which(command[0]) is None:
        raise ServiceError(
            f"this system has no {command[0]}; start `appliance serve` from its own start-up files"
        )
    result = subprocess.run(  # noqa: S603  (fixed names)
        command, env=environment_of_others(), capture_output=True, text=True, check=False
    )
    if result.returncode:
        said = (result.stderr.strip() or result.stdout.strip()).replace("\n", "; ")
        raise ServiceError(f"`{' '.join(command)}` failed: {said}")
    return result.stdout.strip()


def write_files(files: dict[Path, str]) -> None:
    """Write each file, making its folder. Raises ServiceError naming the folder and the remedy."""
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            remedy = "run it as administrator (sudo), or without --system"
            raise ServiceError(f"{path} cannot be written: {error.strerror}; {remedy}") from error


def remove_files(files: dict[Path, str]) -> None:
    """Remove each file that is there. Raises ServiceError."""
    for path in files:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ServiceError(f"{path} cannot be removed: {error.strerror}") from error
