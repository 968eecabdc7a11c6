"""`appliance profile`: where a token's time goes, what bounds it, what would help."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from appliance.commands.settings_args import settings_from
from appliance.errors import BadSetting
from appliance.loader import wishes_of
from appliance.profiling.flame import speedscope
from appliance.profiling.model_profile import ModelProfile, profile_model
from appliance.profiling.pages import roofline, to_html
from appliance.profiling.step_profile import FORWARD, StepProfile
from appliance.serve import find_model


def profile(args: argparse.Namespace) -> int:
    """Measure and print. Raises what loading raises, and BadSetting for a file that cannot be written."""
    settings = settings_from(args)
    found = find_model(settings, _report)
    result = profile_model(
        found.path, wishes_of(settings), _report, context=args.prompt_tokens, num_steps=args.steps
    )
    if args.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        _show(result)
    if args.flame:
        profiles = [step for step, _, _ in result.steps]
        _write(Path(args.flame), json.dumps(speedscope(found.model_id, profiles)))
    if args.roofline:
        _write(Path(args.roofline), roofline(result, is_file=True))
    if args.html:
        _write(Path(args.html), to_html(found.model_id, result))
    return 0


def _show(result: ModelProfile) -> None:
    limits = result.limits
    print(f"{result.backend_name}, {result.precision} weights")
    if limits.bytes_per_s is not None:
        products = limits.operations_per_s
        rate = "not measured" if products is None else f"{products / 1e9:.0f} GOP/s"
        print(f"this machine: reads {limits.bytes_per_s / 1e9:.1f} GB/s; 8-bit products {rate}")
    if result.limits_problem:
        print(f"the machine's limits are unknown: {result.limits_problem}")
    for step, traffic, verdict in result.steps:
        speed = f"{step.step_s * 1e3:.2f} ms a step, {step.batch / step.step_s:.1f} tok/s"
        print(f"\nbatch {step.batch}, context {step.context}: {speed}")
        print(f"  {verdict.words}\n  -> {verdict.remedy}")
        print(
            f"  {traffic.num_bytes / 1e6:.1f} MB and {traffic.operations / 1e9:.2f} GOP a step at the least"
        )
        _show_stages(step)
    for name, count, seconds in result.operators:
        print(f"{seconds * 1e3:10.2f} ms  {count:6d} calls  {name}")


def _show_stages(step: StepProfile) -> None:
    for stage, seconds in step.stages.items():
        print(f"  {stage:<14} {seconds * 1e3:9.3f} ms  {seconds / step.step_s:6.1%}")
        for phase, phase_s in step.phases.items() if stage == FORWARD else ():
            print(f"    {phase:<12} {phase_s * 1e3:9.3f} ms  {phase_s / step.step_s:6.1%}")


def _report(text: str, share: float | None) -> None:
    if share is None:
        print(text, file=sys.stderr)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror}; name another file") from error
    print(f"{path} is written", file=sys.stderr)
