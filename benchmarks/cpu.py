"""Measures this checkout beside the best CPU engines and against the machine's limits, on one model file.

    python -m benchmarks.cpu                               everything, 5 rounds
    python -m benchmarks.cpu --only decode,http --rounds 1 a part of it

Installs the peers from the package index at the first run (llama.cpp is built: about 8 CPU minutes) and
writes docs/performance.md and docs/performance.svg. Linux.
"""

import argparse
import time
from pathlib import Path

from appliance import paths
from appliance.catalog import Catalog
from appliance.config import Settings
from appliance.download.pull import ensure_model
from appliance.download.store import ModelStore
from appliance.runtime.threads import usable_threads
from benchmarks.bars import judge
from benchmarks.engines import CHECKOUT, Bench, open_bench
from benchmarks.http_load import run_http, run_memory
from benchmarks.quality import run_quality
from benchmarks.raw import run_raw
from benchmarks.report import ratio_table, write_report
from benchmarks.results import PARTS, Part, Results


def main() -> None:
    args = _parser().parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    model = args.model or _default_model()
    bench = open_bench(args.folder, model, args.threads)
    stored = args.folder / "results.json"
    results = Results.load(stored)
    _run_parts(bench, results, stored, args.only, args.rounds)
    print(ratio_table(judge(results)))
    write_report(results, args.docs / "performance.md", args.docs / "performance.svg")
    print(f"done in {(time.monotonic() - started_s) / 60:.1f} minutes")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_part_names, default=PARTS, help=f"parts of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_threads())
    parser.add_argument("--model", type=Path, help="a Q4_1 GGUF file; the default model otherwise")
    parser.add_argument(
        "--folder",
        type=Path,
        default=paths.cache_dir() / "benchmarks",
        help="where peers, files made of the model, logs and results are kept",
    )
    parser.add_argument("--docs", type=Path, default=CHECKOUT / "docs", help="where the report is written")
    return parser


def _part_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(PARTS)}")
    return names


def _default_model() -> Path:
    return ensure_model(Settings().model, Catalog.load(), ModelStore(paths.models_dir())).path


def _run_parts(bench: Bench, results: Results, stored: Path, names: tuple[str, ...], rounds: int) -> None:
    """Run parts one after another; what a finished one found is safe from what befalls the next."""
    raw: dict[str, Part] = {
        name: results.begin(name, rounds) for name in ("decode", "prefill") if name in names
    }
    if raw:
        run_raw(bench, raw, rounds)
        results.save(stored)
    if "http" in names:
        run_http(bench, results.begin("http", rounds), rounds)
        results.save(stored)
    if "memory" in names:
        run_memory(bench, results.begin("memory", 1))
        results.save(stored)
    if "quality" in names:
        run_quality(bench, results.begin("quality", 1))
        results.save(stored)


if __name__ == "__main__":
    main()
