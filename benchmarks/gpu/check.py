"""Runs a plan's sections and keeps what they find, whatever becomes of the others."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from appliance.errors import BadSetting
from appliance.model.decoder import DecoderWeights
from benchmarks.gpu.bars import verdicts
from benchmarks.gpu.engine_steps import engine_rows
from benchmarks.gpu.kernel_checks import check_kernels
from benchmarks.gpu.many_requests import run_requests
from benchmarks.gpu.plan import CheckPlan
from benchmarks.gpu.random_llama import random_weights
from benchmarks.gpu.steps import (
    Row,
    attention_rows,
    compiled_rows,
    our_decode_rows,
    our_prefill_rows,
    plain_rows,
)
from benchmarks.gpu.timing import copy_bandwidth, matmul_rate
from kernels.ops import Ops

_COLUMNS = ("what", "by", "batch", "context", "ms", "tokens_per_s", "share_of_copy", "share_of_matmul")
# Set aside for torch.compile, which cannot be cut short.
_COMPILING_S = 90.0


class GpuCheck:
    """One run. Writes the file after each section, so that a card that is lost leaves what came before."""

    def __init__(self, plan: CheckPlan, ops: Ops, target: Path) -> None:
        self._plan = plan
        self._ops = ops
        self._target = target
        self._began = time.monotonic()
        self._rows: list[Row] = []
        self._left_out: dict[str, str] = {}
        self._copy_rate = self._matmul = 0.0
        self.problems: list[str] = []
        self.found: dict[str, object] = {
            "device": torch.cuda.get_device_name(plan.device) if plan.is_gpu else "cpu (a dry run)",
            "torch": torch.__version__,
            "steps": self._rows,
            "left_out": self._left_out,
            "problems": self.problems,
        }

    def run(self) -> None:
        self._section("kernels", self._check_kernels)
        self._section("rates", self._measure_rates)
        if self._copy_rate:
            self._section(
                "attention", lambda: self._take(attention_rows(self._plan, self._ops, self._matmul))
            )
            for precision in self._plan.precisions:
                self._section(precision, lambda precision=precision: self._measure(precision))
            self._section("compiled torch", self._measure_compiled, is_ours=False, needs_s=_COMPILING_S)
            for precision in self._plan.library_precisions:
                self._section(precision, lambda precision=precision: self._measure_library(precision))
        self._judge()

    def _check_kernels(self) -> None:
        checks = list(check_kernels(self._plan, self._ops))
        bad = [check for check in checks if not check.is_good]
        self.problems += [f"{c.name}: error {c.error:.2e}, at most {c.tolerance:.0e}" for c in bad]
        self.found["kernels"] = {check.name: check.error for check in checks}
        print(f"kernels: {len(checks) - len(bad)} of {len(checks)} as in float64")
        for problem in self.problems:
            print(f"  wrong: {problem}")

    def _measure_rates(self) -> None:
        self._copy_rate, self._matmul = copy_bandwidth(self._plan), matmul_rate(self._plan)
        self.found |= {"copy_bytes_per_s": self._copy_rate, "matmul_operations_per_s": self._matmul}
        print(f"copy {self._copy_rate / 1e9:.0f} GB/s, product {self._matmul / 1e12:.1f} Tops/s")

    def _measure(self, precision: str) -> None:
        plan, ops = self._plan, self._ops
        weights = random_weights(plan.config, precision, plan.dtype, plan.device)
        self._take(our_decode_rows(plan, weights, ops, precision, self._copy_rate))
        self._take(our_prefill_rows(plan, weights, ops, precision, self._matmul))
        self._section(f"engine, {precision}", lambda: self._run_engine(weights, precision))
        if precision == "bf16":
            self._section("requests", lambda: self._run_requests(weights))
            rates = self._copy_rate, self._matmul
            self._section("plain torch", lambda: self._take(plain_rows(plan, weights, *rates)))

    def _measure_compiled(self) -> None:
        weights = random_weights(self._plan.config, "bf16", self._plan.dtype, self._plan.device)
        self._take(compiled_rows(self._plan, weights, self._copy_rate))

    def _measure_library(self, precision: str) -> None:
        """A library's precisions, in few cells: it runs without graphs, and slowly."""
        few = {"batches": self._plan.batches[:2], "contexts": self._plan.contexts[:1]}
        plan = replace(self._plan, **few, prompts=self._plan.prompts[:1])
        try:
            weights = random_weights(plan.config, precision, plan.dtype, plan.device)
        except BadSetting as error:
            self._leave_out(precision, error.message)
            return
        self._take(our_decode_rows(plan, weights, self._ops, precision, self._copy_rate, graphs=(False,)))
        self._take(our_prefill_rows(plan, weights, self._ops, precision, self._matmul))

    def _run_engine(self, weights: DecoderWeights, precision: str) -> None:
        for row in engine_rows(self._plan, weights, self._ops, precision):
            problems = row.pop("problems")
            assert isinstance(problems, list)
            self.problems += [f"engine, {precision}: {problem}" for problem in problems]
            self._take([row])

    def _run_requests(self, weights: DecoderWeights) -> None:
        requests = run_requests(self._plan, weights, self._ops)
        self.found["requests"] = requests
        self.problems += requests["problems"]
        print(f"requests: {requests}")

    def _take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._rows.append(row)
            print("  ".join(f"{_shown(row.get(name)):>12}" for name in _COLUMNS), flush=True)
            if self._spent_s > self._plan.limit_s:
                return

    def _section(
        self, name: str, run: Callable[[], None], *, is_ours: bool = True, needs_s: float = 0.0
    ) -> None:
        if self._spent_s + needs_s > self._plan.limit_s:
            self._leave_out(name, "no time")
            return
        try:
            run()
        except torch.OutOfMemoryError as error:
            self._leave_out(name, f"does not fit on this card: {str(error).splitlines()[0]}")
        except Exception as error:  # of a card at hand for minutes one section's fault must not cost the rest
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            self._leave_out(name, text)
            self.problems += [f"{name}: {text}"] if is_ours else []
        print(f"{name}: done after {self._spent_s:.0f} s", flush=True)
        self._write()

    def _leave_out(self, name: str, reason: str) -> None:
        self._left_out[name] = reason
        print(f"left out: {name}: {reason}")

    def _judge(self) -> None:
        judged = verdicts(self._rows)
        for verdict in judged:
            found = "" if verdict.found is None else f"{verdict.found:.4g}"
            print(f"{verdict.promise:>52}: {found:>8}, at least {verdict.at_least:g}: {verdict.text}")
        self.found["bars"] = {v.promise: [v.found, v.at_least, v.text] for v in judged}
        self._write()

    def _write(self) -> None:
        self.found["seconds"] = self._spent_s
        self._target.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._began


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
