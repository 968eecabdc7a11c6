"""Runs decode steps through scheduler, backend and sampler, each stage timed. Knows no HTTP."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from appliance.engine.assembly import ALL_OFF, make_scheduler
from appliance.engine.batch import SequenceOutput, StepResult
from appliance.engine.block_pool import BlockPool
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import SamplingParams, Sequence, SequenceId
from appliance.profiling.stage_clock import StageClock
from appliance.profiling.staged_backend import StagedBackend
from appliance.text.detokenizer import Detokenizer
from appliance.text.tokenizer import Tokenizer

FORWARD = "forward"
_WARM_UP_STEPS = 2
_STEP_TOKENS = 512
_TEXT = "The quick brown fox jumps over the lazy dog, and nobody knows why it does so. "


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """The mean decode step of `batch` sequences: seconds by stage, and inside the forward pass by phase."""

    batch: int
    context: int
    stages: dict[str, float]
    phases: dict[str, float]

    @property
    def step_s(self) -> float:
        return sum(self.stages.values())

    @property
    def forward_s(self) -> float:
        return self.stages[FORWARD]


def tokens_each(batch: int, context: int, num_steps: int) -> int:
    """Return how long a sequence may get: the first ones decode while the last prompts are computed."""
    return context + num_steps + _WARM_UP_STEPS + 2 * (batch * context // _STEP_TOKENS) + 8


def profile_steps(
    backend: StagedBackend,
    tokenizer: Tokenizer,
    take_phases: Callable[[], dict[str, float]],
    *,
    num_blocks: int,
    batch: int,
    context: int,
    num_steps: int,
) -> StepProfile:
    """Compute `batch` prompts of `context` tokens, then time the decode steps after them.

    `take_phases` gives the seconds by phase since it was last asked; none where the backend counts none.
    """
    most_tokens = tokens_each(batch, context, num_steps)
    scheduler = make_scheduler(
        BlockPool(num_blocks, backend.block_size),
        ALL_OFF,
        max_sequences=batch,
        step_tokens=_STEP_TOKENS,
        context_length=most_tokens,
        enable_prefix_cache=False,
    )
    ids = tokenizer.encode(_TEXT * (context // 8 + 1), parse_special=False)[:context]
    for number in range(batch):
        scheduler.add(
            Sequence(
                sequence_id=SequenceId(number),
                token_ids=list(ids),
                num_prompt_tokens=len(ids),
                params=SamplingParams(temperature=0.0),
                max_output_tokens=most_tokens - len(ids),
                arrival_s=0.0,
            )
        )
    run = _Steps(backend, scheduler, tokenizer)
    decoded = 0
    while decoded < _WARM_UP_STEPS:
        decoded += run.step(StageClock()) == batch
    take_phases()
    clock = StageClock()
    for _ in range(num_steps):
        run.step(clock)
    phases = {name: seconds / num_steps for name, seconds in take_phases().items() if seconds > 0}
    stages = {name: seconds / num_steps for name, seconds in clock.seconds.items()}
    return StepProfile(batch=batch, context=context, stages=stages, phases=phases)


class _Steps:
    """The engine's loop, unrolled so that each of its parts can be timed."""

    def __init__(self, backend: StagedBackend, scheduler: Scheduler, tokenizer: Tokenizer) -> None:
        self._backend = backend
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._detokenizers: dict[SequenceId, Detokenizer] = {}

    def step(self, clock: StageClock) -> int:
        """Run one step; return how many sequences got a token in it."""
        backend = self._backend
        with clock.stage("schedule"):
            batch = self._scheduler.schedule()
            assert batch.sequences, "a sequence ended before its steps were timed"
        with clock.stage("inputs"):
            backend.prepare(batch)
        with clock.stage(FORWARD):
            backend.compute()
        with clock.stage("sample"):
            chosen = {output.sequence_id: output for output in backend.sample()}
        with clock.stage("update"):
            ids = [s.sequence_id for s in batch.sequences]
            found = tuple(chosen.get(i, SequenceOutput(sequence_id=i)) for i in ids)
            self._scheduler.update(batch, StepResult(outputs=found))
        with clock.stage("detokenize"):
            texts = [self._text(output) for output in chosen.values()]
        with clock.stage("encode chunk"):
            for text in texts:
                json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}]})
        return len(chosen)

    def _text(self, output: SequenceOutput) -> str:
        held = self._detokenizers.setdefault(output.sequence_id, Detokenizer(self._tokenizer))
        return "".join(held.push(token_id) for token_id in output.token_ids)
