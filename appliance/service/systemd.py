"""The systemd service: a unit, and a socket that keeps the port while the service restarts."""

from collections.abc import Callable, Sequence
from contextlib import suppress
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
# A setting, a model or a folder that is wrong stays wrong.
RestartPreventExitStatus=2 4 5 9
# Running answers may finish.
TimeoutStopSec=30
KillMode=mixed
Environment=APPLIANCE_JSON_LOGS=true
{protections}NoNewPrivileges=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077

[Install]
WantedBy={target}
"""
# These need namespaces of the service's own.
_NAMESPACES = """\
CapabilityBoundingSet=
ProtectSystem=strict
PrivateTmp=yes
ProtectControlGroups=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectClock=yes
"""
# A system service has folders of its own; a user's keeps to the user's.
_SYSTEM_IDENTITY = """\
DynamicUser=yes
StateDirectory={name}
CacheDirectory={name}
Environment=HOME=/var/lib/{name} XDG_DATA_HOME=/var/lib/{name} XDG_STATE_HOME=/var/lib/{name}
Environment=XDG_CACHE_HOME=/var/cache/{name}
ProtectHome=yes
ProtectKernelLogs=yes
ProtectHostname=yes
ProtectProc=invisible
PrivateMounts=yes
RemoveIPC=yes
"""
# Without a namespace of users, systemd 252 silently leaves out what a user may not do, or fails to start it.
# Some systems allow none. A user sees no kernel log and sets no host name anyway.
_USER_IDENTITY = """\
PrivateUsers=yes
ProtectHome=read-only
ReadWritePaths={folders}
"""
# With these exit statuses systemd says that it could not set up what `_NAMESPACES` asks: USER, CAPABILITIES,
# NAMESPACE (systemd.exec(5), "Process Exit Codes").
_SETUP_REFUSED = {"217", "218", "226"}
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
        call: Callable[..., str] = call,
    ) -> None:
        self._call = call
        self._command = command
        self._is_system = is_system
        self._address = address
        self._home = home or Path.home()
        self._packaged = packaged

    @property
    def folder(self) -> Path:
        """Where units of this kind belong."""
        return Path("/etc/systemd/system") if self._is_system else self._home / ".config" / "systemd" / "user"

    def files(self, *, with_namespaces: bool = True) -> dict[Path, str]:
        unit = _UNIT.format(
            name=NAME,
            command=" ".join(_quoted(part) for part in self._command),
            protections=self._identity() + _NAMESPACES if with_namespaces else "",
            target="multi-user.target" if self._is_system else "default.target",
        )
        return {
            self.folder / f"{NAME}.service": unit,
            self.folder / f"{NAME}.socket": _SOCKET.format(address=self._address),
        }

    def install(self) -> str:
        self._check_program()
        if self._is_installed():
            self._systemctl("stop", f"{NAME}.socket", f"{NAME}.service")
        if not self._is_system:
            for folder in _own_folders():
                folder.mkdir(parents=True, exist_ok=True)  # systemd refuses a path that is not there
        note = self._start()
        user = "" if self._is_system else " --user"
        stays = "" if self._is_system else "; to keep it running after you log out: `loginctl enable-linger`"
        return f"its log: `journalctl{user} -u {NAME}`{stays}{note}"

    def status(self) -> str:
        came_packaged = self._is_system and (self._packaged / f"{NAME}.service").is_file()
        if not came_packaged and not all(path.is_file() for path in self.files()):
            raise ServiceError(
                f"no service is installed in {self.folder}; `appliance service install` does it"
            )
        return self._systemctl("show", "--property=ActiveState,SubState,MainPID,MemoryCurrent", NAME)

    def uninstall(self) -> str:
        if not self._is_installed():
            return f"no service is installed in {self.folder}"
        self._systemctl("disable", "--now", f"{NAME}.socket", f"{NAME}.service")
        remove_files(self.files())
        self._systemctl("daemon-reload")
        return f"removed from {self.folder}; models and settings stay"

    def _is_installed(self) -> bool:
        return any(path.is_file() for path in self.files())

    def _check_program(self) -> None:
        program = self._command[0]
        if self._is_system and _is_in(program, "/home", "/root"):
            raise ServiceError(
                f"{program} lies in a home folder, which a system service does not see; "
                "move the program to /opt first"
            )
        if _is_in(program, "/tmp", "/var/tmp"):  # noqa: S108  (named, not written to)
            raise ServiceError(
                f"{program} lies in a folder for temporary files, which a service does not see; "
                "move the program elsewhere first"
            )

    def _start(self) -> str:
        """Start what `files` says, in a user's case with less protection where the system allows no more."""
        try:
            self._enable(self.files())
            return ""
        except ServiceError:
            if self._is_system or not self._is_setup_refused():
                self._take_back()
                raise
        self._systemctl("stop", NAME)
        self._enable(self.files(with_namespaces=False))
        return "\nThis system allows users no namespaces of their own: it runs without these protections."

    def _is_setup_refused(self) -> bool:
        try:
            status = self._systemctl("show", "--property=ExecMainStatus", "--value", NAME)
        except ServiceError:
            return False  # no manager answers at all
        return status in _SETUP_REFUSED

    def _take_back(self) -> None:
        with suppress(ServiceError):  # the failure that led here is the one to tell
            self._systemctl("disable", "--now", f"{NAME}.socket", f"{NAME}.service")
        remove_files(self.files())

    def _enable(self, files: dict[Path, str]) -> None:
        write_files(files)
        self._systemctl("daemon-reload")
        self._systemctl("enable", "--now", f"{NAME}.socket", f"{NAME}.service")

    def _identity(self) -> str:
        if self._is_system:
            return _SYSTEM_IDENTITY.format(name=NAME)
        return _USER_IDENTITY.format(folders=" ".join(_quoted(str(folder)) for folder in _own_folders()))

    def _systemctl(self, *arguments: str) -> str:
        return self._call("systemctl", *(() if self._is_system else ("--user",)), *arguments)


def _own_folders() -> tuple[Path, ...]:
    return tuple(
        dict.fromkeys(
            (paths.data_dir(), paths.cache_dir(), paths.config_dir(), paths.state_dir(), paths.log_dir())
        )
    )


def _is_in(program: str, *folders: str) -> bool:
    return any(Path(program).is_relative_to(folder) for folder in folders)


def _quoted(part: str) -> str:
    """One argument in a unit file: systemd expands percent signs and dollars, and splits at spaces."""
    escaped = part.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(c in escaped for c in " \t\"'\\;") or not escaped else escaped
