"""`appliance bench`: a load is sent, measured, reported, compared. Returns 1 where something got slower."""

import argparse
import asyncio
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from appliance import __version__, paths
from appliance.bench.baselines import Baselines
from appliance.bench.benchmark import Course, StagePlan, Subject, run_course, run_soak, sweep
from appliance.bench.comparison import Difference, compare, is_slower, summary
from appliance.bench.own_server import own_server
from appliance.bench.report import Report, Targets
from appliance.bench.server_facts import first_model, resident_bytes
from appliance.bench.soak import find_drifts
from appliance.bench.soak_report import soak_html, soak_markdown
from appliance.bench.traffic import Closed, Open
from appliance.bench.words import difference_rows, report_rows, to_html, to_markdown
from appliance.bench.workload import LengthMix, Planned, poisson_times, read_trace
from appliance.config import Settings
from appliance.errors import BadSetting
from appliance.server.listener import is_appliance

EXIT_SLOWER = 1
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)([smh])$")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FEWEST_REQUESTS = 24
_WIDE_COLUMNS = 190  # what a row with all its intervals takes
_ROUNDS = 6  # turns that each of two servers takes in a stage


def bench(args: argparse.Namespace) -> int:
    """Run the benchmark. Raises BadSetting, ServerUnusable."""
    before = _baselines().load(args.compare) if args.compare else None
    mix = LengthMix.parse(args.lengths)
    duration_s = _seconds(args.soak) if args.soak else None
    with ExitStack() as stack:
        subjects = [stack.enter_context(_subject(args.what, args.model, args.api_key))]
        if duration_s is not None:
            return _soak(args, subjects[0], mix, duration_s)
        course = _course(args, mix)
        if args.vs:
            subjects.append(stack.enter_context(_subject(args.vs, args.vs_model, args.vs_api_key)))
        reports = _run(args, subjects, course)
    differences: tuple[Difference, ...] = ()
    tolerance = args.tolerance / 100
    if args.vs:
        differences = compare(reports[1], reports[0], tolerance=tolerance)
    elif before is not None:
        differences = compare(before, reports[0], tolerance=tolerance)
    _show(reports, differences)
    _write(args, reports, differences)
    if all(stage.num_requests == sum(stage.errors.values()) for stage in reports[0].stages):
        return EXIT_SLOWER
    return EXIT_SLOWER if is_slower(differences) else 0


@contextmanager
def _subject(what: str | None, model: str | None, api_key: str | None) -> Iterator[Subject]:
    """A server by its URL; without one the appliance that runs here, else one of our own."""
    default = Settings()
    if what is None and is_appliance(default.host, default.port):
        what = f"http://{default.host}:{default.port}"
    if what is not None and what.startswith(("http://", "https://")):
        yield Subject(url=what.rstrip("/"), model=model or first_model(what, api_key), api_key=api_key)
        return
    with own_server(paths.program(), what or default.model) as url:
        yield Subject(url=url, model=first_model(url, None))


def _course(args: argparse.Namespace, mix: LengthMix) -> Course:
    stages = _trace_stages(args) if args.trace else [*_closed_stages(args, mix), *_open_stages(args, mix)]
    return Course(
        stages=tuple(stages),
        targets=Targets(ttft_s=args.target_ttft, tpot_s=args.target_tpot),
        num_warm_up=args.warm_up,
        num_rounds=_ROUNDS if args.vs else 1,
    )


def _closed_stages(args: argparse.Namespace, mix: LengthMix) -> list[StagePlan]:
    counts = sweep(args.peak) if args.clients is None else _numbers("clients", args.clients, int)
    if args.rate and args.clients is None:
        return []
    stages = []
    for count in counts:
        plans = mix.draw(args.requests or max(_FEWEST_REQUESTS, 3 * count), args.seed)
        name = f"{count} client{'s' if count > 1 else ''}"
        stages.append(StagePlan(name=name, load=count, plans=tuple(plans), pattern=Closed(count)))
    return stages


def _open_stages(args: argparse.Namespace, mix: LengthMix) -> list[StagePlan]:
    stages = []
    for rate in _numbers("rate", args.rate, float) if args.rate else []:
        plans = mix.draw(args.requests or _FEWEST_REQUESTS, args.seed)
        times = tuple(poisson_times(len(plans), rate, args.seed))
        stages.append(
            StagePlan(name=f"{rate:g} requests/s", load=rate, plans=tuple(plans), pattern=Open(times))
        )
    return stages


def _trace_stages(args: argparse.Namespace) -> list[StagePlan]:
    plans = read_trace(Path(args.trace))
    times = tuple((plan.at_s or 0.0) / args.trace_speed for plan in plans)
    rate = len(plans) / max(times[-1], 1e-9) if times[-1] else float(len(plans))
    name = f"trace {Path(args.trace).name}"
    return [StagePlan(name=name, load=round(rate, 3), plans=tuple(plans), pattern=Open(times))]


def _run(args: argparse.Namespace, subjects: list[Subject], course: Course) -> list[Report]:
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    with _progress() as progress:
        total = len(subjects) * sum(len(stage.plans) for stage in course.stages)
        task = progress.add_task("requests", total=total)
        columns = asyncio.run(run_course(subjects, course, on_done=lambda: progress.advance(task)))
    workload = f"trace {Path(args.trace).name}" if args.trace else f"prompt:answer tokens {args.lengths}"
    return [
        Report(
            url=subject.url,
            model=subject.model,
            version=__version__,
            started=started,
            machine=f"{platform.system()} {platform.machine()}",
            workload=workload,
            targets=course.targets,
            stages=stages,
        )
        for subject, stages in zip(subjects, columns, strict=True)
    ]


def _soak(args: argparse.Namespace, subject: Subject, mix: LengthMix, duration_s: float) -> int:
    def draw(number: int) -> list[Planned]:
        return mix.draw(2 * args.peak, args.seed + number)

    with _progress() as progress:
        task = progress.add_task("seconds", total=round(duration_s))
        windows = asyncio.run(
            run_soak(
                subject,
                draw,
                concurrency=args.peak,
                duration_s=duration_s,
                read_memory=lambda: resident_bytes(subject.url, subject.api_key),
                on_progress=lambda elapsed_s: progress.update(task, completed=round(elapsed_s)),
            )
        )
    drifts, num_errors = find_drifts(windows), sum(window.num_errors for window in windows)
    for drift in drifts:
        print(f"{drift.words} (p = {drift.p_value:.2g})")
    if not drifts:
        print(f"{len(windows)} windows are too few to tell a drift; soak for longer")
    if num_errors:
        print(f"{num_errors} requests failed")
    load = f"{args.peak} clients for {args.soak}, prompt:answer tokens {args.lengths}"
    lead = f"{subject.model} at {subject.url}, {load}."
    _write_files(
        (args.json, lambda: _json_text(windows)),
        (args.markdown, lambda: soak_markdown(lead, windows, drifts)),
        (args.html, lambda: soak_html(lead, windows, drifts)),
    )
    return EXIT_SLOWER if num_errors or any(drift.is_drift for drift in drifts) else 0


def _show(reports: list[Report], differences: tuple[Difference, ...]) -> None:
    console = Console()
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


def _write(args: argparse.Namespace, reports: list[Report], differences: tuple[Difference, ...]) -> None:
    _write_files(
        (args.json, lambda: _json_text(reports)),
        (args.markdown, lambda: to_markdown(reports, differences)),
        (args.html, lambda: to_html(reports, differences)),
    )
    if args.save_baseline:
        print(f"kept as {args.save_baseline}: {_baselines().save(args.save_baseline, reports[0])}")


def _json_text(told: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(told), indent=1).decode()


def _write_files(*files: tuple[str | None, Callable[[], str]]) -> None:
    for name, text in files:
        if name:
            _write_text(Path(name), text)


def _write_text(path: Path, text: Callable[[], str]) -> None:
    try:
        path.write_text(text(), "utf-8")
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror}; name another file") from error
    print(f"{path} is written", file=sys.stderr)


def _baselines() -> Baselines:
    return Baselines(paths.data_dir() / "baselines")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _numbers(name: str, text: str, kind: Callable[[str], float]) -> list[int]:
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise BadSetting(f"--{name} is {text!r}; write numbers above 0, such as 1,2,4", param=name)
    return found  # type: ignore[return-value]


def _seconds(text: str) -> float:
    match = _DURATION.match(text)
    if match is None:
        raise BadSetting(f"--soak is {text!r}; write a time such as 90s, 30m or 1h", param="soak")
    return float(match[1]) * _UNIT_S[match[2]]
