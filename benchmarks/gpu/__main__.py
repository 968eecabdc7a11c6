"""One command: `python -m benchmarks.gpu`, or `make gpu-check`. Prints a table and writes JSON.

Needs torch and triton alone besides this checkout; no network, no model file. Sections run in order of worth
and none begins after the plan's limit, so a run ends within six minutes. Exits 1 where a kernel is wrong, a
request fails or something leaks. `--tiny` runs the same sections on a CPU, to see that they run.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from appliance.runtime.gpu_device import read_gpu, why_no_gpu
from benchmarks.gpu.kernel_checks import check_kernels
from benchmarks.gpu.many_requests import run_requests
from benchmarks.gpu.plan import CheckPlan, gpu_plan, tiny_plan
from benchmarks.gpu.random_llama import random_weights
from benchmarks.gpu.steps import Row, our_decode_rows, our_prefill_rows, plain_rows
from benchmarks.gpu.timing import copy_bandwidth, matmul_rate
from kernels.ops import Ops
from kernels.tables import gpu_ops, reference_ops

_COLUMNS = ("what", "by", "batch", "context", "ms", "tokens_per_s", "share_of_copy", "share_of_matmul")


class GpuCheck:
    """One run: keeps what it found, and stops beginning sections when time is up."""

    def __init__(self, plan: CheckPlan, ops: Ops) -> None:
        self._plan = plan
        self._ops = ops
        self._began = time.monotonic()
        self.problems: list[str] = []
        self.found: dict[str, object] = {
            "device": torch.cuda.get_device_name(plan.device) if plan.is_gpu else "cpu (a dry run)",
            "torch": torch.__version__,
        }
        self._rows: list[Row] = []
        self.found["steps"] = self._rows

    def run(self) -> None:
        self._check_kernels()
        copy_rate, matmul = copy_bandwidth(self._plan), matmul_rate(self._plan)
        self.found |= {"copy_bytes_per_s": copy_rate, "matmul_operations_per_s": matmul}
        print(f"copy {copy_rate / 1e9:.0f} GB/s, product {matmul / 1e12:.1f} Tops/s, {self._spent_s:.0f} s")
        for precision in self._plan.precisions:
            self._measure(precision, copy_rate, matmul)
        self.found |= {"seconds": self._spent_s, "problems": self.problems}

    def _check_kernels(self) -> None:
        checks = list(check_kernels(self._plan, self._ops))
        bad = [check for check in checks if not check.is_good]
        self.problems += [f"{c.name}: error {c.error:.2e}, at most {c.tolerance:.0e}" for c in bad]
        self.found["kernels"] = {check.name: check.error for check in checks}
        print(f"kernels: {len(checks) - len(bad)} of {len(checks)} as in float64, {self._spent_s:.0f} s")
        for problem in self.problems:
            print(f"  wrong: {problem}")

    def _measure(self, precision: str, copy_rate: float, matmul: float) -> None:
        plan = self._plan
        if not self._has_time(precision):
            return
        weights = random_weights(plan.config, precision, plan.dtype, plan.device)
        self._take(our_decode_rows(plan, weights, self._ops, precision, copy_rate))
        self._take(our_prefill_rows(plan, weights, self._ops, precision, matmul))
        if precision == "bf16":
            self._take(plain_rows(plan, weights, copy_rate, matmul))
            if self._has_time("requests"):
                requests = run_requests(plan, weights, self._ops)
                self.found["requests"] = requests
                self.problems += requests["problems"]
                print(f"requests: {requests}, {self._spent_s:.0f} s")

    def _take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._rows.append(row)
            print("  ".join(f"{_shown(row.get(name)):>12}" for name in _COLUMNS), flush=True)
            if self._spent_s > self._plan.limit_s:
                return

    def _has_time(self, section: str) -> bool:
        if self._spent_s <= self._plan.limit_s:
            return True
        print(f"left out for lack of time: {section}")
        self.found.setdefault("left_out", [])
        assert isinstance(self.found["left_out"], list)
        self.found["left_out"].append(section)
        return False

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._began


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


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
    check = GpuCheck(tiny_plan(), reference_ops()) if args.tiny else GpuCheck(gpu_plan(), gpu_ops())
    check.run()
    args.json.write_text(json.dumps(check.found, indent=1) + "\n", encoding="utf-8")
    print(f"written to {args.json}; {len(check.problems)} problems")
    return 1 if check.problems else 0


if __name__ == "__main__":
    sys.exit(main())
