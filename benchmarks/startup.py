"""Measures how the packaged executable starts and idles, against the bars: one table, in Markdown.

    python -m benchmarks.startup [--file dist/...] [--starts 5] [--idle 30] [--into docs/packaging.md]

Takes about two minutes. Knows the file and its HTTP address only. CPU seconds tell what a busy machine hides.
"""

import argparse
import http.client
import json
import os
import platform
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- startup: begin -->", "<!-- startup: end -->"
GIVE_UP_S = 180.0
SETTLE_S = 60.0
_NUM_VERSIONS = 9
_PROMPT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds since the program was started, and what it had used of the processor by then."""

    live_s: float
    first_token_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Row:
    measure: str
    found: str
    bar: str


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, help="the executable (default: the one in dist/)")
    parser.add_argument("--starts", type=int, default=5, help="later starts (default 5)")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds to watch an idle one; 0: not")
    parser.add_argument("--into", type=Path, help="also write the table between the markers of this file")
    args = parser.parse_args()
    file = args.file or next(ROOT.glob("dist/inference-appliance-*[!l]"))
    with tempfile.TemporaryDirectory(prefix="appliance-startup-") as folder:
        rows = measure(file.resolve(), Path(folder), num_starts=args.starts, idle_s=args.idle)
    table = to_markdown(rows)
    print(table)
    if args.into:
        write_into(args.into, table)


def measure(file: Path, home: Path, *, num_starts: int, idle_s: float) -> list[Row]:
    """Every bar, on one file, in a home folder that is empty at first."""
    versions_s = [_seconds([str(file), "--version"], home) for _ in range(_NUM_VERSIONS)]
    first = _start(file, home)
    later = [_start(file, home) for _ in range(num_starts)]
    rows = [
        Row("size, model included", f"{file.stat().st_size / 1e6:.0f} MB", "300 MB"),
        Row("first start, unpacking, to first token", _shown([first.first_token_s], first.cpu_s), "25 s"),
        Row("later starts to `/health/live`", _shown([start.live_s for start in later]), "1.5 s"),
        Row(
            "later starts to first token",
            _shown([start.first_token_s for start in later], statistics.median(s.cpu_s for s in later)),
            "5 s",
        ),
        Row("`--version`", _shown(versions_s), "0.4 s"),
    ]
    if idle_s:
        percent = _idle_percent(file, home, idle_s)
        rows.append(Row("idle, after a minute", f"{percent:.2f}% of one core", "0.5%"))
    return rows


def to_markdown(rows: Sequence[Row]) -> str:
    machine = f"{os.cpu_count()} cores, {platform.system()} on {platform.machine()}"
    head = f"{machine}; median (range); bars are upper bounds."
    lines = ["| measure | found | bar |", "|---|---|---|"]
    return "\n".join([head, "", *lines, *(f"| {row.measure} | {row.found} | {row.bar} |" for row in rows)])


def write_into(file: Path, table: str) -> None:
    """Replace what is between the markers. Raises ValueError where there are none."""
    before, _, rest = file.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{file} has no {BEGIN} and {END}")
    file.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", "utf-8")


def _shown(seconds: Sequence[float], cpu_s: float | None = None) -> str:
    text = f"{statistics.median(seconds):.2f} s"
    if len(seconds) > 1:
        text += f" ({min(seconds):.2f} to {max(seconds):.2f})"
    return text if cpu_s is None else f"{text}, {cpu_s:.1f} s of processor"


def _start(file: Path, home: Path) -> Start:
    with _serving(file, home) as (process, port, started_s):
        _wait_for("/health/live", port)
        live_s = time.monotonic() - started_s
        _wait_for("/health", port)
        _await_first_token(port)
        first_token_s = time.monotonic() - started_s
        used = process.cpu_times()
    return Start(live_s=live_s, first_token_s=first_token_s, cpu_s=used.user + used.system)


def _idle_percent(file: Path, home: Path, idle_s: float) -> float:
    with _serving(file, home) as (process, port, _):
        _wait_for("/health", port)
        _await_first_token(port)
        time.sleep(SETTLE_S)
        before, began_s = process.cpu_times(), time.monotonic()
        time.sleep(idle_s)
        after = process.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        return 100.0 * used_s / (time.monotonic() - began_s)


@contextmanager
def _serving(file: Path, home: Path) -> Iterator[tuple[psutil.Popen, int, float]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    command = [str(file), "serve", "--no-dashboard", "--port", str(port)]
    started_s = time.monotonic()
    with psutil.Popen(
        command, env={"HOME": str(home)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=None
    ) as process:
        try:
            yield process, port, started_s
        finally:
            process.terminate()


def _seconds(command: Sequence[str], home: Path) -> float:
    began_s = time.monotonic()
    subprocess.run(command, env={"HOME": str(home)}, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began_s


def _wait_for(path: str, port: int) -> None:
    until_s = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(0.02)
    raise TimeoutError(f"{path} was not 200 within {GIVE_UP_S:g} s")


def _await_first_token(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps(_PROMPT | {"stream": True})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    for line in connection.getresponse():
        chunk = line.removeprefix(b"data: ").strip()
        if chunk.startswith(b"{") and json.loads(chunk)["choices"][0]["delta"].get("content"):
            connection.close()
            return
    raise RuntimeError("the answer had no token")


if __name__ == "__main__":
    main()
