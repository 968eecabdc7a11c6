"""`appliance doctor`: each check's line as it comes, as JSON, or in an archive for support."""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from appliance import desktop, paths
from appliance.api_keys import KeyFile, KeyRing
from appliance.catalog import Catalog, ModelFile
from appliance.commands.settings_args import settings_from
from appliance.config import Settings
from appliance.download.pull import find_model
from appliance.download.store import ModelStore
from appliance.errors import BadSetting, StorageNotWritable
from appliance.observe.doctor.bundle import write_bundle
from appliance.observe.doctor.examination import Case, examine
from appliance.observe.doctor.finding import Finding, Status
from appliance.observe.doctor.fit import Foreseen
from appliance.observe.doctor.redaction import of_this_user
from appliance.server.listener import bind

EXIT_FAILED = 1
_SECRETS = ("api_key", "otlp_headers")
_COLOURS = {Status.PASS: "32", Status.WARN: "33", Status.FAIL: "31"}


def doctor(args: argparse.Namespace) -> int:
    """Print the findings. Returns 1 when one fails. Raises StorageNotWritable for the archive."""
    case = _case(args)
    found = examine(case)
    findings = list(found if args.json else _printed(found))
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    if args.bundle:
        _write(Path(args.bundle), case, findings)
    num_failed = sum(finding.status == Status.FAIL for finding in findings)
    if not args.json:
        num_warned = sum(finding.status == Status.WARN for finding in findings)
        print(f"{len(findings)} checks: {num_failed} failed, {num_warned} warned")
    return EXIT_FAILED if num_failed else 0


def _case(args: argparse.Namespace) -> Case:
    settings, problem = Settings(), None
    try:
        settings = settings_from(args)
    except BadSetting as error:
        problem = error
    catalog = Catalog.load()
    models_dir = paths.models_dir(settings.models_dir)
    return Case(
        settings=settings,
        settings_file=Path(args.settings) if args.settings else paths.settings_file(),
        problem=problem,
        environment=os.environ,
        find=lambda name: find_model(name, catalog, models_dir),
        store=ModelStore(models_dir, shipped=paths.shipped_model()),
        bind=bind,
        foresee=partial(_foresee, settings),
        has_key=settings.api_key is not None or bool(KeyRing(KeyFile(paths.keys_file()))),
    )


def _foresee(settings: Settings, found: ModelFile) -> Foreseen | None:
    from appliance.memory_forecast import forecast  # what loads a model takes a moment to import

    return forecast(settings, found)


def _printed(findings: Iterable[Finding]) -> Iterable[Finding]:
    has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for finding in findings:
        word = finding.status.value
        if has_colour:
            word = f"\033[{_COLOURS[finding.status]}m{word}\033[0m"
        print(f"{word}  {finding.name:<14} {finding.summary}", flush=True)
        if finding.remedy:
            print(f"{'':<21}-> {finding.remedy}", flush=True)
        yield finding


def _write(file: Path, case: Case, findings: list[Finding]) -> None:
    from appliance.installation import components

    texts = {
        "findings.json": json.dumps([asdict(finding) for finding in findings], indent=2),
        "versions.txt": "\n".join(f"{name} {number}" for name, number in components()),
        "settings.txt": "\n".join(_settings_lines(case.settings)),
    }
    log = desktop.log_file()
    logs = (log, *(log.with_name(f"{log.name}.{number}") for number in (1, 2)))
    secrets = [case.settings.api_key or "", os.environ.get("HF_TOKEN", "")]
    secrets += [pair.partition("=")[2].strip() for pair in (case.settings.otlp_headers or "").split(",")]
    try:
        write_bundle(file, texts, logs, of_this_user(secrets))
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageNotWritable(f"{file} cannot be written: {reason}; name another --bundle") from error
    print(
        f"{file} is written, without keys, prompts and names; look into it before you send it",
        file=sys.stderr,
    )


def _settings_lines(settings: Settings) -> list[str]:
    values = asdict(settings)
    return [f"{name} = {'set' if name in _SECRETS and value else value}" for name, value in values.items()]
