"""What `appliance bench` prints and writes: tables, files, a progress bar. Computes no figure."""

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from appliance.bench.comparison import Difference, summary
from appliance.bench.report import Report
from appliance.bench.words import difference_rows, report_rows
from appliance.errors import BadSetting

_FILE_COLUMNS = 132
_WIDE_COLUMNS = 190  # what a row with all its intervals takes


def show(reports: list[Report], differences: tuple[Difference, ...]) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = _FILE_COLUMNS
    for report in reports:
        rows = report_rows(report, has_intervals=console.width >= _WIDE_COLUMNS)
        _print_table(console, f"{report.model} at {report.url}, times in ms", rows)
        for stage in report.stages:
            for error, count in stage.errors.items():
                print(f"{stage.name}: {count} failed: {error}")
    if differences:
        _print_table(console, "Compared", difference_rows(differences))
        print(summary(differences))


def _print_table(console: Console, title: str, rows: list[tuple[str, ...]]) -> None:
    table = Table(*rows[0], title=title, box=None, pad_edge=False)
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)


def json_text(told: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(told), indent=1).decode()


def write_files(*files: tuple[str | None, Callable[[], str]]) -> None:
    """Write each text whose file is named. Raises BadSetting."""
    for name, text in files:
        if name:
            _write_text(Path(name), text)


def _write_text(path: Path, text: Callable[[], str]) -> None:
    try:
        path.write_text(text(), "utf-8")
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror}; name another file") from error
    print(f"{path} is written", file=sys.stderr)


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
