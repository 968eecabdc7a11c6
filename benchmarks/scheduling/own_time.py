"""What a step costs beside the model: the scheduler's CPU time, and the whole engine's, on this machine."""

import time
from dataclasses import dataclass

from appliance.engine.assembly import Policies, make_scheduler
from appliance.engine.batch import Batch, Pending, StepResult
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.percentiles import nearest_rank
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import SamplingParams, Sequence, SequenceId
from appliance.engine.stream import TokenStream
from benchmarks.scheduling.scenarios import Bar
from benchmarks.scheduling.simulation import next_tokens

_NUM_SEQUENCES, _NUM_WARM, _NUM_STEPS, _BAR_S = 64, 100, 500, 0.5e-3
_STEP_S = 0.04
_PROMPT, _PARAMS = [7] * 300, SamplingParams(max_tokens=4000)


@dataclass(slots=True)
class Answered:
    """A step that was done at once."""

    batch: Batch
    result: StepResult


class InstantRunner:
    """Answers at once, and counts the CPU time that it took for it: not the engine's."""

    def __init__(self) -> None:
        self.taken_s = 0.0

    def launch(self, batch: Batch) -> Answered:
        started_s = time.thread_time()
        answered = Answered(batch, next_tokens(batch))
        self.taken_s += time.thread_time() - started_s
        return answered

    def collect(self, pending: Pending) -> StepResult:
        assert isinstance(pending, Answered)
        return pending.result


def own_time() -> tuple[Bar, ...]:
    """With 64 streams, 64 more in the queue, and nothing else."""
    told = f"a step with {_NUM_SEQUENCES} streams, CPU time, real"
    return (
        _bar(f"the scheduler's own time {told}", _scheduler_s()),
        _bar(f"the engine's, with deadlines, counters and streams, {told}", _engine_s()),
    )


def _scheduler_s() -> list[float]:
    """Seconds of each `schedule` and `update` together."""
    scheduler = _scheduler()
    for number in range(2 * _NUM_SEQUENCES):
        scheduler.add(
            Sequence(
                sequence_id=SequenceId(number),
                token_ids=list(_PROMPT),
                num_prompt_tokens=len(_PROMPT),
                params=_PARAMS,
                max_output_tokens=4000,
                arrival_s=0.0,
                deadline_s=600.0,
            )
        )
    taken = []
    for step in range(_NUM_WARM + _NUM_STEPS):
        started_s = time.thread_time()
        batch = scheduler.schedule(step * _STEP_S)
        scheduled_s = time.thread_time()
        result = next_tokens(batch)
        update_s = time.thread_time()
        scheduler.update(batch, result, (step + 0.9) * _STEP_S)
        taken.append(scheduled_s - started_s + time.thread_time() - update_s)
    return taken


def _engine_s() -> list[float]:
    """Seconds of each `Engine.step` but for its runner's."""
    runner = InstantRunner()
    engine = Engine(runner, _scheduler())
    running = [_submit(engine) for _ in range(_NUM_SEQUENCES)]
    while not all(sequence.num_output_tokens for sequence in engine.snapshot().sequences):
        engine.step()
    for _ in range(_NUM_SEQUENCES):
        _submit(engine)
    taken = []
    for _ in range(_NUM_WARM + _NUM_STEPS):
        started_s = time.thread_time() - runner.taken_s
        engine.step()
        taken.append(time.thread_time() - runner.taken_s - started_s)
        for stream in running:
            next(stream)
    return taken


def _submit(engine: Engine) -> TokenStream:
    return engine.submit(_PROMPT, _PARAMS, deadline_s=600.0, end_within_s=3600.0)


def _scheduler() -> Scheduler:
    return make_scheduler(
        BlockPool(4096, 64),
        Policies(),
        max_sequences=_NUM_SEQUENCES,
        step_tokens=512,
        context_length=8192,
        enable_prefix_cache=False,
    )


def _bar(measure: str, taken_s: list[float]) -> Bar:
    settled = sorted(taken_s[_NUM_WARM:])
    median_s = nearest_rank(settled, 50)
    return Bar(
        measure=measure,
        on=f"{1e3 * median_s:.2f} ms (P99 {1e3 * nearest_rank(settled, 99):.2f})",
        off="",
        result=median_s / _BAR_S,
        promised="< 0.5 ms",
        passes=median_s < _BAR_S,
    )
