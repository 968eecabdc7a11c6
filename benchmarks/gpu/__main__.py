"""One command: `python -m benchmarks.gpu`, or `make gpu-check`. Prints a table and writes JSON.

Needs torch and triton alone besides this checkout; no network, no model file. Sections run in order of worth
and none begins after the plan's limit, so a run ends within six minutes; what was left out is named. Exits 1
where a kernel is wrong, a request fails, a step waits more than once or something leaks; what is slower than
predicted is said and no error. `--tiny` runs the same sections on a CPU, to see that they run.
"""

import argparse
import sys
from pathlib import Path

import torch

from appliance.runtime.gpu_device import read_gpu, why_no_gpu
from benchmarks.gpu.check import GpuCheck
from benchmarks.gpu.plan import gpu_plan, tiny_plan
from kernels.tables import gpu_ops, reference_ops


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a dry run on the CPU")
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"), help="where the results go")
    args = parser.parse_args()
    if not args.tiny:
        trouble = why_no_gpu(read_gpu(torch.device("cuda")))
        if trouble is not None:
            print(f"there is nothing to check: {trouble}", file=sys.stderr)
            return 2
    plan, ops = (tiny_plan(), reference_ops()) if args.tiny else (gpu_plan(), gpu_ops())
    check = GpuCheck(plan, ops, args.json)
    check.run()
    print(f"written to {args.json}; {len(check.problems)} problems")
    return 1 if check.problems else 0


if __name__ == "__main__":
    sys.exit(main())
