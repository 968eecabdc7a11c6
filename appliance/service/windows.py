"""The Windows service: a task that starts with the user's session.

A service of the Service Control Manager must answer its protocol; the Task Scheduler runs any program,
restarts it when it fails, and needs no administrator.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from appliance import paths
from appliance.service.service import call, remove_files, write_files

TASK = "Inference Appliance"
_TASK = """\
<?xml version="1.0" encoding="UTF-8"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <Triggers><LogonTrigger><Enabled>true</Enabled></LogonTrigger></Triggers>
  <Principals><Principal id="Author"><LogonType>InteractiveToken</LogonType></Principal></Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>3</Count></RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec><Command>{program}</Command><Arguments>{arguments}</Arguments></Exec>
  </Actions>
</Task>
"""


class WindowsService:
    """A scheduled task, made from a definition file that stays in the state folder."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def files(self) -> dict[Path, str]:
        program, *arguments = self._command
        text = _TASK.format(program=escape(program), arguments=escape(subprocess.list2cmdline(arguments)))
        return {paths.state_dir() / "service-task.xml": text}

    def install(self) -> str:
        files = self.files()
        write_files(files)
        call("schtasks", "/Create", "/TN", TASK, "/F", "/XML", str(next(iter(files))))
        call("schtasks", "/Run", "/TN", TASK)
        return f"see it as '{TASK}' in the Task Scheduler"

    def status(self) -> str:
        return call("schtasks", "/Query", "/TN", TASK, "/V", "/FO", "LIST")

    def uninstall(self) -> str:
        call("schtasks", "/End", "/TN", TASK)
        call("schtasks", "/Delete", "/TN", TASK, "/F")
        remove_files(self.files())
        return f"removed the task '{TASK}'; models and settings stay"
