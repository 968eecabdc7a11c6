"""A soak's part of what `appliance bench` tells: what drifted, and each window."""

import argparse
from collections.abc import Sequence

from appliance.bench.comparison import Difference
from appliance.bench.report import Report
from appliance.bench.soak import Soaked
from appliance.bench.soak_report import soak_html, soak_markdown
from appliance.commands.bench_output import json_text, write_files


def show_soak(reports: Sequence[Report], soaked: Sequence[Soaked]) -> bool:
    """Print what holds and what drifts. Returns whether something drifts or a request failed."""
    is_unsteady = False
    for report, one in zip(reports, soaked, strict=True):
        print(f"{report.model} at {report.url}: {one.verdict}")
        for drift in one.drifts:
            print(f"  {drift.words} (p = {drift.p_value:.2g})")
        is_unsteady |= bool(one.stage.errors) or any(drift.is_drift for drift in one.drifts)
    return is_unsteady


def write_soak(
    args: argparse.Namespace,
    reports: Sequence[Report],
    differences: tuple[Difference, ...],
    soaked: Sequence[Soaked],
) -> None:
    """Write the files that are asked for. Raises BadSetting."""
    told = [
        {"report": report, "windows": one.windows, "drifts": one.drifts}
        for report, one in zip(reports, soaked, strict=True)
    ]
    write_files(
        (args.json, lambda: json_text(told)),
        (args.markdown, lambda: soak_markdown(reports, differences, soaked)),
        (args.html, lambda: soak_html(reports, differences, soaked)),
    )
