"""Builds schedulers and engines over a scripted runner, with a clock that tests move."""

import itertools
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from appliance.engine.batch import Batch, ScheduledSequence
from appliance.engine.block_pool import BlockPool
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import SamplingParams, Sequence, SequenceId, ServiceClass
from appliance.engine.sequence_update import SequenceUpdate
from appliance.engine.step_budget import FixedBudget
from appliance.engine.stream import MOST_UNREAD, FinishEvent, TokenEvent, TokenStream
from appliance.engine.swap_space import HostMemory
from engine.leading_runner import LeadingScriptedRunner
from engine.scripted_runner import ScriptedRunner

_sequence_ids = itertools.count(1)


class FakeClock:
    """A monotonic clock that stands still unless moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class _SecondAToken(FixedBudget):
    """Beside streams there is room for `slice_share` of any chunks."""

    def __init__(self, step_tokens: int, slice_share: float) -> None:
        super().__init__(step_tokens)
        self._slice_share = slice_share

    def share(self, streams: SequenceOf[Sequence], chunks: SequenceOf[ScheduledSequence]) -> float:
        return self._slice_share if streams else super().share(streams, chunks)

    def prompt_s(self, num_tokens: int) -> float | None:
        return float(num_tokens)


@dataclass
class Bench:
    """A scheduler and the runner that plays its device."""

    scheduler: Scheduler
    runner: ScriptedRunner
    clock: FakeClock = field(default_factory=FakeClock)

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams | None = None,
        *,
        salt: str = "",
        deadline_s: float | None = None,
        fork_of: Sequence | None = None,
        service_class: ServiceClass = ServiceClass.SILVER,
    ) -> Sequence:
        params = params or SamplingParams()
        sequence = Sequence(
            sequence_id=SequenceId(next(_sequence_ids)),
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            params=params,
            max_output_tokens=self.scheduler.max_output_tokens(len(prompt), params),
            arrival_s=self.clock(),
            deadline_s=deadline_s,
            cache_salt=salt,
            fork_of=fork_of,
            service_class=service_class,
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> tuple[Batch, list[SequenceUpdate]]:
        batch = self.scheduler.schedule(self.clock())
        result = self.runner.collect(self.runner.launch(batch))
        updates = self.scheduler.update(batch, result, self.clock())
        self.scheduler.check_invariants()
        return batch, updates

    def run(self, *, most_steps: int = 10_000) -> list[Batch]:
        """Step until nothing is live."""
        batches = []
        while self.scheduler.num_live:
            assert len(batches) < most_steps, "sequences do not end"
            batches.append(self.step()[0])
        return batches

    def solo(self, sequence: Sequence) -> tuple[int, ...]:
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        limit = min(self.scheduler.context_length, self.scheduler.pool.capacity_tokens)
        return self.runner.solo(prompt, sequence.params, limit=limit)


def output(sequence: Sequence) -> tuple[int, ...]:
    return tuple(sequence.token_ids[sequence.num_prompt_tokens :])


def make_bench(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_sequences: int = 8,
    step_tokens: int = 32,
    context_length: int = 128,
    enable_prefix_cache: bool = True,
    vocab_size: int = 1000,
    num_places: int = 0,
    block_s: float = 0.001,
    is_leading: bool = False,
    num_layers: int = 0,
    slice_share: float = 0.3,
) -> Bench:
    """`num_places` blocks may wait in host memory, `block_s` each way; a prompt token takes a second.

    With `num_layers` chunks beside streams go through `slice_share` of them a step.
    """
    scheduler = Scheduler(
        BlockPool(num_blocks, block_size),
        budget=_SecondAToken(step_tokens, slice_share),
        num_layers=num_layers,
        host=HostMemory(num_places=num_places, block_s=block_s) if num_places else None,
        max_sequences=max_sequences,
        step_tokens=step_tokens,
        context_length=context_length,
        enable_prefix_cache=enable_prefix_cache,
    )
    clock = FakeClock()
    runner = (LeadingScriptedRunner if is_leading else ScriptedRunner)(
        num_blocks=num_blocks, block_size=block_size, vocab_size=vocab_size, sleep=clock.sleep
    )
    return Bench(scheduler, runner, clock)


def make_engine(bench: Bench, *, queue_limit: int = 256, most_unread: int = MOST_UNREAD) -> Engine:
    """An engine on the bench's own scheduler, runner and clock, to be stepped by hand."""
    return Engine(
        bench.runner,
        bench.scheduler,
        queue_limit=queue_limit,
        most_unread=most_unread,
        clock=bench.clock,
    )


def read_all(stream: TokenStream) -> tuple[list[TokenEvent], FinishEvent]:
    """Read an ended stream, or one that another thread feeds, to its end."""
    *tokens, finish = stream
    assert isinstance(finish, FinishEvent)
    return [event for event in tokens if isinstance(event, TokenEvent)], finish


def token_ids(events: list[TokenEvent]) -> tuple[int, ...]:
    return tuple(token_id for event in events for token_id in event.token_ids)
