"""Whether `appliance bench` finds what it should: nothing between equal servers, a tenth where there is one.

    python -m benchmarks.sensitivity MODEL [--slowdown 0.1]

The slowed server is this same program with a sleep after each step of its model. Servers take short turns,
so that other work on the machine strikes both alike: a minute on a quiet machine, minutes on a busy one.
Exit code 1 where the benchmark errs.
"""

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack

from appliance.bench.own_server import own_server
from appliance.engine.batch import StepResult
from appliance.runtime.runner import ModelRunner

_TRAFFIC = ("--clients", "1", "--lengths", "16:16", "--warm-up", "4")
_SLOWED = "serve-slowed"


def serve_slowed(slowdown: float, arguments: list[str]) -> int:
    """Serve with every step so much longer. Only here is a method replaced: the product has no such hook."""
    from appliance.__main__ import main as appliance_main

    launch, collect = ModelRunner.launch, ModelRunner.collect
    began_s: dict[int, float] = {}

    def launch_timed(self: ModelRunner, batch: object) -> object:
        began_s[id(self)] = time.perf_counter()
        return launch(self, batch)  # type: ignore[arg-type]

    def collect_slowed(self: ModelRunner, pending: object) -> StepResult:
        result = collect(self, pending)  # type: ignore[arg-type]
        time.sleep(slowdown * (time.perf_counter() - began_s[id(self)]))
        return result

    ModelRunner.launch = launch_timed  # type: ignore[assignment, method-assign]
    ModelRunner.collect = collect_slowed  # type: ignore[assignment, method-assign]
    return appliance_main(arguments)


def compare(name: str, url: str, other: str, num_requests: int, *, is_slower: bool) -> bool:
    """Run the benchmark in turns and say whether it judged right."""
    command = [sys.executable, "-m", "appliance", "bench", url, "--vs", other, *_TRAFFIC]
    done = subprocess.run([*command, "--requests", str(num_requests)], capture_output=True, text=True)
    verdict = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    print(*(line for line in done.stdout.splitlines() if line.startswith("1 client ")), sep="\n")
    is_right = bool(done.returncode) == is_slower and (is_slower or verdict == "no difference")
    print(f"{name:<24} exit {done.returncode}  {verdict}  {'right' if is_right else 'WRONG'}", flush=True)
    return is_right


def main() -> int:
    if sys.argv[1:2] == [_SLOWED]:
        return serve_slowed(float(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--slowdown", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=40, help="of each server, a request each")
    args = parser.parse_args()
    plain = [sys.executable, "-m", "appliance"]
    slowed = [sys.executable, "-m", "benchmarks.sensitivity", _SLOWED, str(args.slowdown)]
    with ExitStack() as stack:
        one, same, slow = (stack.enter_context(own_server(p, args.model)) for p in (plain, plain, slowed))
        equal = compare("equal servers", one, same, args.turns, is_slower=False)
        found = compare(f"one {args.slowdown:.0%} slower", slow, one, args.turns, is_slower=True)
    return 0 if equal and found else 1


if __name__ == "__main__":
    sys.exit(main())
