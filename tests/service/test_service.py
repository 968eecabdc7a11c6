"""Service definitions, and what installing says where there is no manager."""

import plistlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.service import ServiceError
from appliance.service.launchd import LaunchdService
from appliance.service.service import call, remove_files, write_files
from appliance.service.systemd import NAME, SystemdService
from appliance.service.windows import WindowsService

COMMAND = ["/opt/my apps/appliance", "serve", "--no-dashboard", "--model", "50%$x.gguf"]


def systemd(
    home: Path, *, is_system: bool = False, program: str = COMMAND[0], call: Callable[..., str] = call
) -> SystemdService:
    return SystemdService(
        [program, *COMMAND[1:]], address="127.0.0.1:11500", is_system=is_system, home=home, call=call
    )


class ScriptedManager:
    """A systemctl whose first `enable` fails, with an exit status of the program's own."""

    def __init__(self, status: str) -> None:
        self._status = status
        self.commands: list[tuple[str, ...]] = []

    def __call__(self, *command: str) -> str:
        self.commands.append(command)
        if "show" in command:
            return self._status
        if "enable" in command and sum("enable" in earlier for earlier in self.commands) == 1:
            raise ServiceError("the job failed")
        return ""


def unit_of(service: SystemdService) -> str:
    return service.files()[service.folder / f"{NAME}.service"]


def test_a_units_command_survives_spaces_percents_and_dollars(tmp_path: Path) -> None:
    line = next(line for line in unit_of(systemd(tmp_path)).splitlines() if line.startswith("ExecStart="))
    assert line == 'ExecStart="/opt/my apps/appliance" serve --no-dashboard --model 50%%$$x.gguf'


@pytest.mark.parametrize("is_system", [False, True])
def test_systemd_accepts_the_units(tmp_path: Path, is_system: bool) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze here")
    program = tmp_path / "appliance"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    service = systemd(tmp_path, is_system=is_system, program=str(program))
    files = {tmp_path / path.name: text for path, text in service.files().items()}
    write_files(files)
    result = subprocess.run([tool, "verify", *map(str, files)], capture_output=True, text=True, check=False)
    assert NAME not in result.stderr, result.stderr


@pytest.mark.parametrize("is_system", [False, True])
def test_what_a_service_may_do_is_bounded(tmp_path: Path, is_system: bool) -> None:
    lines = unit_of(systemd(tmp_path, is_system=is_system)).splitlines()
    for option in ("NoNewPrivileges=yes", "ProtectSystem=strict", "SystemCallFilter=@system-service"):
        assert option in lines
    assert ("ProtectHome=yes" in lines) == is_system


def test_the_port_waits_in_a_socket_while_the_service_restarts(tmp_path: Path) -> None:
    service = systemd(tmp_path)
    assert "ListenStream=127.0.0.1:11500" in service.files()[service.folder / f"{NAME}.socket"]
    assert f"Requires={NAME}.socket" in unit_of(service)


def test_a_system_service_has_folders_and_a_user_of_its_own(tmp_path: Path) -> None:
    unit = unit_of(systemd(tmp_path, is_system=True))
    assert "DynamicUser=yes" in unit
    assert f"StateDirectory={NAME}" in unit


def test_a_user_without_namespaces_gets_a_service_without_them(tmp_path: Path) -> None:
    service = systemd(tmp_path, call=ScriptedManager("226"))
    assert "without these protections" in service.install()
    written = (service.folder / f"{NAME}.service").read_text()
    assert "ProtectSystem" not in written
    assert "PrivateTmp" not in written
    assert "SystemCallFilter=@system-service" in written


def test_a_users_service_has_the_namespace_without_which_its_protections_do_nothing(tmp_path: Path) -> None:
    lines = unit_of(systemd(tmp_path)).splitlines()
    assert "PrivateUsers=yes" in lines
    assert "ProtectHome=read-only" in lines
    assert "PrivateUsers=yes" not in unit_of(systemd(tmp_path, is_system=True))


def test_a_service_that_does_not_start_is_taken_back(tmp_path: Path) -> None:
    manager = ScriptedManager("1")
    service = systemd(tmp_path, call=manager)
    with pytest.raises(ServiceError, match="the job failed"):
        service.install()
    assert not any(path.exists() for path in service.files())
    assert any("disable" in command for command in manager.commands)


def test_an_installed_service_is_stopped_and_started_with_the_new_arguments(tmp_path: Path) -> None:
    write_files(systemd(tmp_path).files())
    manager = ScriptedManager("226")
    systemd(tmp_path, call=manager).install()
    verbs = [command[2] for command in manager.commands]
    assert verbs.index("stop") < verbs.index("enable")


@pytest.mark.parametrize("folder", ["/tmp", "/var/tmp"])
def test_a_program_in_a_folder_for_temporary_files_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(ServiceError, match="move the program elsewhere"):
        systemd(tmp_path, program=f"{folder}/appliance").install()


def test_a_program_in_a_home_folder_is_refused_for_the_system(tmp_path: Path) -> None:
    service = systemd(tmp_path, is_system=True, program="/home/someone/appliance")
    with pytest.raises(ServiceError, match="move the program to /opt first"):
        service.install()


def test_the_status_of_no_service_says_how_to_install_one(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="appliance service install"):
        systemd(tmp_path).status()


def test_a_service_that_a_package_brought_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.service").write_text("")
    service = SystemdService(COMMAND, address="127.0.0.1:1", is_system=True, home=tmp_path, packaged=tmp_path)
    try:
        said = service.status()
    except ServiceError as error:  # no systemd runs here
        said = error.message
    assert "no service is installed" not in said


def test_removing_no_service_is_no_failure(tmp_path: Path) -> None:
    assert "no service is installed" in systemd(tmp_path).uninstall()


def test_a_missing_manager_is_named() -> None:
    with pytest.raises(ServiceError, match="this system has no no-such-manager"):
        call("no-such-manager", "enable")


def test_a_manager_that_refuses_is_quoted() -> None:
    with pytest.raises(ServiceError, match=r"`ls /no/such/folder` failed: .*No such file"):
        call("ls", "/no/such/folder")


def test_files_are_written_and_removed(tmp_path: Path) -> None:
    files = {tmp_path / "a" / "b.service": "text"}
    write_files(files)
    assert (tmp_path / "a" / "b.service").read_text() == "text"
    remove_files(files)
    remove_files(files)
    assert not (tmp_path / "a" / "b.service").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ServiceError, match=r"taken.*cannot be written"):
        write_files({tmp_path / "taken" / "unit": "text"})


def test_the_launch_agent_is_a_property_list(tmp_path: Path) -> None:
    service = LaunchdService(COMMAND, is_system=False, home=tmp_path)
    agent = plistlib.loads(service.files()[service.plist].encode())
    assert agent["ProgramArguments"] == COMMAND
    assert agent["RunAtLoad"] is True


def test_the_windows_task_quotes_its_arguments() -> None:
    (text,) = (
        WindowsService(["C:\\a & b\\appliance.exe", "serve", "--model", "my model.gguf"]).files().values()
    )
    assert "<Command>C:\\a &amp; b\\appliance.exe</Command>" in text
    assert '<Arguments>serve --model "my model.gguf"</Arguments>' in text
