"""Runs every policy on and off under simulated load, and writes docs/performance.md and a plot.

    python -m benchmarks.scheduling                      all of it; minutes
    python -m benchmarks.scheduling --share 0.05         with a twentieth of the requests
    python -m benchmarks.scheduling --model FILE.gguf    also the real engine under a long prompt

Only the scheduler's own time and the real engine's rows are of this machine's clock.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.scheduling.interference import Interference, interference_bars
from benchmarks.scheduling.own_time import own_time
from benchmarks.scheduling.report import bar_table, write_report
from benchmarks.scheduling.scenarios import (
    Bar,
    classes_at_overload,
    concurrency_in_the_same_memory,
    continuous_against_static,
    lanes_against_fifo,
    prompts_beside_streams,
    three_times_peak,
)
from benchmarks.scheduling.step_table import fitted_costs

_DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
_SCENARIOS = {
    "Queue wait in bursts": (continuous_against_static, 3000),
    "Latency of 50 and 4000 tokens": (lanes_against_fifo, 2000),
    "Wait for a start at twice the load": (classes_at_overload, 6000),
    "Gaps of four streams beside 6,400 tokens": (prompts_beside_streams, 3),
    "Three times the peak": (three_times_peak, 100_000),
    "Concurrency": (concurrency_in_the_same_memory, 1500),
}


def main() -> None:
    args = _parser().parse_args()
    costs = fitted_costs()
    bars: list[Bar] = []
    panels = {}
    for title, (scenario, count) in _SCENARIOS.items():
        found, values = scenario(costs, count=count if count < 200 else max(200, int(args.share * count)))
        bars += found
        print(bar_table(found), flush=True)
        if values:
            panels[title] = values
    bars += own_time()
    bars += _real(args)
    print(bar_table(bars))
    write_report(bars, panels, costs, args.docs / "performance.md", args.docs / "scheduling.svg")


def _real(args: argparse.Namespace) -> tuple[Bar, ...]:
    if args.interference:
        return interference_bars(Interference(**json.loads(args.interference.read_text("utf-8"))))
    if args.model is None:
        return ()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "interference.json"
        # In a process of its own: here the garbage collector goes over all that was simulated.
        command = [sys.executable, "-m", "benchmarks.scheduling.interference", "--model", str(args.model)]
        command += ["--kv-dtype", args.kv_dtype, "--results", str(results)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return interference_bars(Interference(**json.loads(results.read_text("utf-8"))))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the requests of a full run")
    parser.add_argument("--model", type=Path, help="a GGUF file for the rows of the real engine")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--interference", type=Path, help="results of benchmarks.scheduling.interference")
    parser.add_argument("--docs", type=Path, default=_DOCS)
    return parser


if __name__ == "__main__":
    main()
