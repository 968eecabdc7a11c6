"""Times decode steps through the whole engine, with steps ahead and in turn. Knows no kernels."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from appliance.engine.batch import Batch, Pending, StepResult
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import SamplingParams
from appliance.engine.stream import FinishEvent
from appliance.model.decoder import DecoderWeights
from appliance.runtime.runner import ModelRunner
from benchmarks.gpu.plan import CheckPlan
from benchmarks.gpu.steps import Row, make_backend
from benchmarks.gpu.timing import synchronize
from kernels.ops import Ops

_PROMPT_TOKENS = 16


class InTurn:
    """A runner that hides its steps ahead."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def launch(self, batch: Batch) -> Pending:
        return self._runner.launch(batch)

    def collect(self, pending: Pending) -> StepResult:
        return self._runner.collect(pending)


def engine_rows(plan: CheckPlan, weights: DecoderWeights, ops: Ops, precision: str) -> Iterator[Row]:
    """Milliseconds of a step with all that the host does for it; `problems` where it waits more than once."""
    backend = make_backend(plan, weights, ops, has_graphs=True)
    size = backend.kv_layout.block_size
    most_tokens = _PROMPT_TOKENS + plan.engine_steps + 16
    num_blocks = max(plan.engine_batches) * -(-most_tokens // size)
    backend.attach_kv(num_blocks)
    for batch in plan.engine_batches:
        for name in ("ahead", "in turn"):
            runner = ModelRunner(backend)
            scheduler = Scheduler(
                BlockPool(num_blocks, size),
                max_sequences=batch,
                step_tokens=max(batch * _PROMPT_TOKENS, 16),
                context_length=most_tokens,
            )
            engine = Engine(runner if name == "ahead" else InTurn(runner), scheduler)
            seconds, problems = _timed(plan, engine, batch)
            yield {
                "what": "engine",
                "by": f"ours, {precision}, steps {name}",
                "batch": batch,
                "context": _PROMPT_TOKENS,
                "ms": seconds * 1e3,
                "tokens_per_s": batch / seconds,
                "problems": problems,
            }
    backend.detach_kv()


def _timed(plan: CheckPlan, engine: Engine, batch: int) -> tuple[float, list[str]]:
    """The mean time of a step, and what was wrong in the last ones, in which no hidden wait is allowed."""
    params = SamplingParams(temperature=0.0, max_tokens=plan.engine_steps + 12)
    streams = [engine.submit([index + 1] * _PROMPT_TOKENS, params) for index in range(batch)]
    for _ in range(4):
        engine.step()
    synchronize(plan.device)
    started = time.perf_counter()
    for _ in range(plan.engine_steps):
        engine.step()
    seconds = (time.perf_counter() - started) / plan.engine_steps
    with _no_hidden_waits(plan):
        while engine.step():
            pass
    failures = set()
    for stream in streams:
        *_, finish = stream
        assert isinstance(finish, FinishEvent)
        failures |= {finish.failure.message} if finish.failure else set()
    return seconds, sorted(failures)


@contextmanager
def _no_hidden_waits(plan: CheckPlan) -> Iterator[None]:
    """Within it torch raises where it would wait for the card; waiting for an event is not meant."""
    if not plan.is_gpu:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
