"""Shows a pull on standard error: a bar on a terminal, else a line now and then. Knows nothing of sources."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from appliance.download.workspace import PullPhase, PullProgress, Report

# Without a terminal: often enough to see life, rare enough for a log.
LINE_INTERVAL_S = 5.0


@contextmanager
def show_progress() -> Iterator[Report]:
    """Yield what to hand to `pull`; the display ends with the block, whatever ends it."""
    if not sys.stderr.isatty():
        yield _LineReporter().report
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        phase: PullPhase | None = None

        def report(progress: PullProgress) -> None:
            nonlocal phase
            if progress.phase is not phase:
                # Speed belongs to one phase: what is verified was not downloaded at that rate.
                phase = progress.phase
                bar.reset(task, total=progress.total_bytes, description=f"{progress.model_id}: {phase}")
            bar.update(task, completed=progress.done_bytes)

        yield report


class _LineReporter:
    """A line at each new phase, and every few seconds within one."""

    def __init__(self) -> None:
        self._phase: PullPhase | None = None
        self._last_s = 0.0

    def report(self, progress: PullProgress) -> None:
        now_s = time.monotonic()
        if progress.phase is self._phase and now_s - self._last_s < LINE_INTERVAL_S:
            return
        is_new_phase = progress.phase is not self._phase
        self._phase, self._last_s = progress.phase, now_s
        print(self._line(progress, is_new_phase=is_new_phase), file=sys.stderr, flush=True)

    def _line(self, progress: PullProgress, *, is_new_phase: bool) -> str:
        if not is_new_phase and progress.total_bytes:
            return f"{progress.model_id}: {progress.phase} {progress.done_bytes / progress.total_bytes:.0%}"
        origin = f" from {progress.source}" if progress.source else ""
        return f"{progress.model_id}: {progress.phase}{origin}"
