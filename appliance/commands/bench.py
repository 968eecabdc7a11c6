"""`appliance bench`: a load is sent, measured, reported, compared. Returns 1 where something got slower."""

import argparse
import asyncio
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from appliance import __version__, paths
from appliance.bench.baselines import Baselines
from appliance.bench.benchmark import Course, Subject, run_course, run_soak
from appliance.bench.comparison import Difference, compare, is_slower
from appliance.bench.own_server import own_server
from appliance.bench.report import Report, Stage, Targets
from appliance.bench.server_facts import first_model, own_bytes
from appliance.bench.soak import Soaked
from appliance.bench.words import to_html, to_markdown
from appliance.commands.bench_output import json_text, progress_bar, show, write_files
from appliance.commands.bench_soak import show_soak, write_soak
from appliance.commands.bench_traffic import soak_parts, soak_s, stages
from appliance.config import Settings
from appliance.errors import BadSetting
from appliance.server.listener import is_appliance

EXIT_SLOWER = 1


def bench(args: argparse.Namespace) -> int:
    """Run the benchmark. Raises BadSetting, ServerUnusable."""
    _check_flags(args)
    before = _baselines().load(args.compare) if args.compare else None
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    soaked: list[Soaked] = []
    with ExitStack() as stack:
        subjects = [stack.enter_context(_subject(args.what, args.model, args.api_key))]
        if args.vs:
            subjects.append(stack.enter_context(_subject(args.vs, args.vs_model, args.vs_api_key)))
        if args.soak:
            soaked = _soak(args, subjects)
            columns: list[tuple[Stage, ...]] = [(one.stage,) for one in soaked]
        else:
            columns = _run(args, subjects)
    reports = [_report(args, *pair, started) for pair in zip(subjects, columns, strict=True)]
    differences = _differences(args, before, reports)
    show(reports, differences)
    is_unsteady = bool(soaked) and show_soak(reports, soaked)
    _write(args, reports, differences, soaked)
    if is_unsteady or _has_failed(reports[0]) or is_slower(differences):
        return EXIT_SLOWER
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse what could not be done, before a server starts. Raises BadSetting."""
    pairs = (("vs", "compare"), ("trace", "clients"), ("trace", "rate"))
    for one, other in pairs:
        if getattr(args, one) and getattr(args, other):
            raise BadSetting(f"--{one} and --{other} ask for different runs; leave one away", param=one)
    if args.soak:
        soak_s(args.soak), soak_parts(args)
    else:
        stages(args)
    if args.save_baseline:
        _baselines().check(args.save_baseline)


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


def _run(args: argparse.Namespace, subjects: Sequence[Subject]) -> list[tuple[Stage, ...]]:
    course = Course(
        stages=stages(args),
        targets=_targets(args),
        num_warm_up=args.warm_up,
    )
    with progress_bar() as progress:
        total = len(subjects) * sum(len(stage.plans) for stage in course.stages)
        task = progress.add_task("requests", total=total)
        return asyncio.run(run_course(subjects, course, on_done=lambda: progress.advance(task)))


def _soak(args: argparse.Namespace, subjects: Sequence[Subject]) -> list[Soaked]:
    duration_s = soak_s(args.soak)
    with progress_bar() as progress:
        task = progress.add_task("seconds", total=round(duration_s))
        return asyncio.run(
            run_soak(
                subjects,
                soak_parts(args),
                targets=_targets(args),
                duration_s=duration_s,
                read_memory=lambda subject: own_bytes(subject.url, subject.api_key),
                on_progress=lambda elapsed_s: progress.update(task, completed=round(elapsed_s)),
            )
        )


def _targets(args: argparse.Namespace) -> Targets:
    return Targets(ttft_s=args.target_ttft, tpot_s=args.target_tpot)


def _report(args: argparse.Namespace, subject: Subject, found: tuple[Stage, ...], started: str) -> Report:
    workload = f"trace {Path(args.trace).name}" if args.trace else f"prompt:answer tokens {args.lengths}"
    return Report(
        url=subject.url,
        model=subject.model,
        version=__version__,
        started=started,
        machine=f"{platform.system()} {platform.machine()}",
        workload=f"{workload}, for {args.soak}" if args.soak else workload,
        targets=_targets(args),
        stages=found,
    )


def _differences(
    args: argparse.Namespace, before: Report | None, reports: Sequence[Report]
) -> tuple[Difference, ...]:
    """Compare with the second server, or with the run that was kept."""
    tolerance = args.tolerance / 100
    if args.vs:
        return compare(reports[1], reports[0], tolerance=tolerance, is_paired=True)
    return () if before is None else compare(before, reports[0], tolerance=tolerance)


def _has_failed(report: Report) -> bool:
    return all(stage.num_requests == sum(stage.errors.values()) for stage in report.stages)


def _write(
    args: argparse.Namespace,
    reports: list[Report],
    differences: tuple[Difference, ...],
    soaked: list[Soaked],
) -> None:
    if soaked:
        write_soak(args, reports, differences, soaked)
    else:
        write_files(
            (args.json, lambda: json_text(reports)),
            (args.markdown, lambda: to_markdown(reports, differences)),
            (args.html, lambda: to_html(reports, differences)),
        )
    if args.save_baseline:
        print(f"kept as {args.save_baseline}: {_baselines().save(args.save_baseline, reports[0])}")


def _baselines() -> Baselines:
    return Baselines(paths.data_dir() / "baselines")
