"""The macOS service: a launch agent of the user, or a daemon of the machine."""

import os
import plistlib
from collections.abc import Sequence
from pathlib import Path

from appliance import paths
from appliance.service.service import ServiceError, call, remove_files, write_files

LABEL = "org.inference-appliance.serve"


class LaunchdService:
    """Kept running by launchd; its log is the appliance's log file."""

    def __init__(self, command: Sequence[str], *, is_system: bool, home: Path | None = None) -> None:
        self._command = command
        self._is_system = is_system
        self._home = home or Path.home()

    @property
    def plist(self) -> Path:
        """Where launchd looks for it."""
        if self._is_system:
            return Path("/Library/LaunchDaemons") / f"{LABEL}.plist"
        return self._home / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def files(self) -> dict[Path, str]:
        log = str(paths.log_dir() / "service.log")
        agent = {
            "Label": LABEL,
            "ProgramArguments": list(self._command),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ProcessType": "Interactive",
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
        return {self.plist: plistlib.dumps(agent).decode("utf-8")}

    def install(self) -> str:
        paths.log_dir().mkdir(parents=True, exist_ok=True)
        write_files(self.files())
        call("launchctl", "bootstrap", self._domain, str(self.plist))
        return f"its log: {paths.log_dir() / 'service.log'}"

    def status(self) -> str:
        if not self.plist.is_file():
            raise ServiceError(f"{self.plist} is not there; `appliance service install` writes it")
        return call("launchctl", "print", f"{self._domain}/{LABEL}")

    def uninstall(self) -> str:
        if not self.plist.is_file():
            return f"{self.plist} is not there: nothing to remove"
        call("launchctl", "bootout", f"{self._domain}/{LABEL}")
        remove_files(self.files())
        return f"removed {self.plist}; models and settings stay"

    @property
    def _domain(self) -> str:
        # os.getuid is missing on Windows, where this class is never made.
        return "system" if self._is_system else f"gui/{os.getuid()}"
