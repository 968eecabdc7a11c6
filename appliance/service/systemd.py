"""The systemd service: a unit, and a socket that keeps the port while the service restarts."""

from collections.abc import Sequence
from pathlib import Path

from appliance import paths
from appliance.service.service import ServiceError, call, remove_files, write_files

NAME = "inference-appliance"
# Where a Debian package puts the machine's units.
_PACKAGED = Path("/usr/lib/systemd/system")
_UNIT = """\
[Unit]
Description=Inference Appliance: a language model for the apps of this machine
After=network.target
Requires={name}.socket

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=2
# Running answers may finish.
TimeoutStopSec=30
KillMode=mixed
Environment=APPLIANCE_JSON_LOGS=true
{identity}NoNewPrivileges=yes
ProtectSystem=strict
PrivateTmp=yes
ProtectControlGroups=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
CapabilityBoundingSet=
UMask=0077

[Install]
WantedBy={target}
"""
# A system service has folders of its own; a user's keeps to the user's.
_SYSTEM_IDENTITY = """\
DynamicUser=yes
StateDirectory={name}
CacheDirectory={name}
Environment=HOME=/var/lib/{name} XDG_DATA_HOME=/var/lib/{name} XDG_STATE_HOME=/var/lib/{name}
Environment=XDG_CACHE_HOME=/var/cache/{name}
ProtectHome=yes
ProtectProc=invisible
PrivateMounts=yes
RemoveIPC=yes
"""
_USER_IDENTITY = "ReadWritePaths={folders}\n"
_SOCKET = """\
[Unit]
Description=The port of the Inference Appliance

[Socket]
ListenStream={address}
NoDelay=yes
Backlog=512

[Install]
WantedBy=sockets.target
"""


class SystemdService:
    """A user's service, or with `is_system` the machine's."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        address: str,
        is_system: bool,
        home: Path | None = None,
        packaged: Path = _PACKAGED,
    ) -> None:
        self._command = command
        self._is_system = is_system
        self._address = address
        self._home = home or Path.home()
        self._packaged = packaged

    @property
    def folder(self) -> Path:
        """Where units of this kind belong."""
        return Path("/etc/systemd/system") if self._is_system else self._home / ".config" / "systemd" / "user"

    def files(self) -> dict[Path, str]:
        unit = _UNIT.format(
            name=NAME,
            command=" ".join(_quoted(part) for part in self._command),
            identity=self._identity(),
            target="multi-user.target" if self._is_system else "default.target",
        )
        return {
            self.folder / f"{NAME}.service": unit,
            self.folder / f"{NAME}.socket": _SOCKET.format(address=self._address),
        }

    def install(self) -> str:
        if self._is_system and _is_in_a_home(self._command[0]):
            raise ServiceError(
                f"{self._command[0]} lies in a home folder, which a system service does not see; "
                "move the program to /opt first"
            )
        if not self._is_system:
            for folder in _own_folders():
                folder.mkdir(parents=True, exist_ok=True)  # systemd refuses a path that is not there
        write_files(self.files())
        self._systemctl("daemon-reload")
        self._systemctl("enable", "--now", f"{NAME}.socket", f"{NAME}.service")
        user = "" if self._is_system else " --user"
        stays = "" if self._is_system else "; to keep it running after you log out: `loginctl enable-linger`"
        return f"running at http://{self._address}; its log: `journalctl{user} -u {NAME}`{stays}"

    def status(self) -> str:
        came_packaged = self._is_system and (self._packaged / f"{NAME}.service").is_file()
        if not came_packaged and not all(path.is_file() for path in self.files()):
            raise ServiceError(
                f"no service is installed in {self.folder}; `appliance service install` does it"
            )
        return self._systemctl("show", "--property=ActiveState,SubState,MainPID,MemoryCurrent", NAME)

    def uninstall(self) -> str:
        files = self.files()
        if not any(path.is_file() for path in files):
            return f"no service is installed in {self.folder}"
        self._systemctl("disable", "--now", f"{NAME}.socket", f"{NAME}.service")
        remove_files(files)
        self._systemctl("daemon-reload")
        return f"removed from {self.folder}; models and settings stay"

    def _identity(self) -> str:
        if self._is_system:
            return _SYSTEM_IDENTITY.format(name=NAME)
        return _USER_IDENTITY.format(folders=" ".join(_quoted(str(folder)) for folder in _own_folders()))

    def _systemctl(self, *arguments: str) -> str:
        return call("systemctl", *(() if self._is_system else ("--user",)), *arguments)


def _own_folders() -> tuple[Path, ...]:
    return tuple(
        dict.fromkeys(
            (paths.data_dir(), paths.cache_dir(), paths.config_dir(), paths.state_dir(), paths.log_dir())
        )
    )


def _is_in_a_home(program: str) -> bool:
    return Path(program).is_relative_to("/home") or Path(program).is_relative_to("/root")


def _quoted(part: str) -> str:
    """One argument in a unit file: systemd expands percent signs and dollars, and splits at spaces."""
    escaped = part.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(c in escaped for c in " \t\"'\\;") or not escaped else escaped
