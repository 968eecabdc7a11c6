"""Drives the real scheduler and block pool with simulated requests on a virtual clock.

The token that a sequence gets is the index of its place in the output: a lost, doubled or misplaced one
shows in the end. Nothing here waits: a step moves the clock by what it would have cost.
"""

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace

from appliance.engine.batch import Batch, ScheduledSequence, SequenceOutput, StepResult
from appliance.engine.percentiles import nearest_rank
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import SamplingParams, Sequence, SequenceId, ServiceClass
from benchmarks.scheduling.load import Request
from benchmarks.scheduling.step_table import StepCosts

_STOP = 0
_STOP_IDS = frozenset({_STOP})


@dataclass(slots=True)
class Outcome:
    """What became of the requests: finished sequences in order of arrival, and how many were refused."""

    sequences: list[Sequence] = field(default_factory=list)
    num_refused: int = 0
    num_steps: int = 0
    end_s: float = 0.0
    num_wrong_tokens: int = 0  # lost, doubled or in the wrong place
    running_s: float = 0.0  # integral of running sequences over time

    @property
    def mean_running(self) -> float:
        return self.running_s / self.end_s

    def of_class(self, service_class: ServiceClass) -> list[Sequence]:
        return [s for s in self.sequences if s.service_class is service_class]


class Simulation:
    """One run. `queue_limit` bounds the waiting of each class, as the engine does.

    Without `knows_lengths` requests set no limit, and end with a stop token where their output ends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        costs: StepCosts,
        *,
        queue_limit: int | None = None,
        knows_lengths: bool = True,
        checks_every_step: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._costs = costs
        self._queue_limit = queue_limit
        self._knows_lengths = knows_lengths
        self._num_output: dict[SequenceId, int] = {}
        self._checks_every_step = checks_every_step
        self._now_s = 0.0
        self._outcome = Outcome()

    def run(self, requests: SequenceOf[Request], *, until_s: float = float("inf")) -> Outcome:
        """Play all requests to their ends, or up to a time."""
        upcoming = iter(requests)
        following = next(upcoming, None)
        while (following is not None or self._scheduler.num_live) and self._now_s < until_s:
            while following is not None and following.arrival_s <= self._now_s:
                self._submit(following)
                following = next(upcoming, None)
            if self._scheduler.num_live:
                self._step()
            elif following is not None:
                self._now_s = following.arrival_s
        self._outcome.end_s = self._now_s
        return self._outcome

    def run_clients(self, requests: SequenceOf[Request], num_clients: int) -> Outcome:
        """Have so many clients ask one request after the other, each as soon as its last one has ended.

        A refused request is asked again: it counts as refused each time, and is served in the end.
        """
        upcoming = deque(requests)
        while upcoming or self._scheduler.num_live:
            while upcoming and self._scheduler.num_live < num_clients:
                num_refused = self._outcome.num_refused
                self._submit(replace(upcoming[0], arrival_s=self._now_s))
                if self._outcome.num_refused > num_refused:
                    break
                upcoming.popleft()
            self._step()
        self._outcome.end_s = self._now_s
        return self._outcome

    def run_beside(self, num_prompt: int, *, num_streams: int, times: int) -> tuple[list[float], float]:
        """Have prompts join running streams, one after another.

        Returns each gap over what it would be at that moment without a prompt, and the mean seconds of a
        prompt to its first token.
        """
        for _ in range(num_streams):
            self._submit(Request(arrival_s=self._now_s, num_prompt=128, num_output=10**6))
        streams = list(self._outcome.sequences)
        while not all(s.num_output_tokens > 100 for s in streams):
            self._step()
        ratios: list[float] = []
        began_s = self._now_s
        for _ in range(times):
            self._submit(Request(arrival_s=self._now_s, num_prompt=num_prompt, num_output=1))
            while not self._outcome.sequences[-1].is_finished:
                step_began_s, context = self._now_s, sum(s.num_computed_tokens for s in streams)
                self._step()
                ratios.append((self._now_s - step_began_s) / self._costs.of_streams(num_streams, context))
        return ratios, (self._now_s - began_s) / times

    def _submit(self, request: Request) -> None:
        scheduler = self._scheduler
        if self._queue_limit is not None:
            limit = self._queue_limit + scheduler.num_open_places
            if scheduler.num_waiting_in(request.service_class) >= limit:
                self._outcome.num_refused += 1
                return
        number = len(self._outcome.sequences) + 1
        self._num_output[SequenceId(number)] = request.num_output
        params = SamplingParams(
            max_tokens=request.num_output if self._knows_lengths else None, stop_token_ids=_STOP_IDS
        )
        sequence = Sequence(
            sequence_id=SequenceId(number),
            token_ids=[number] * request.num_prompt,  # no two prompts share a block
            num_prompt_tokens=request.num_prompt,
            params=params,
            max_output_tokens=scheduler.max_output_tokens(request.num_prompt, params),
            arrival_s=request.arrival_s,
            service_class=request.service_class,
        )
        self._outcome.sequences.append(sequence)
        scheduler.add(sequence)

    def _step(self) -> None:
        batch = self._scheduler.schedule(self._now_s)
        step_s = self._costs.of(batch)
        self._outcome.running_s += step_s * self._scheduler.num_running
        self._now_s += step_s
        self._outcome.num_steps += 1
        for update in self._scheduler.update(batch, self._next_tokens(batch), self._now_s):
            if update.sequence.is_finished:
                num_output = self._num_output.pop(update.sequence.sequence_id)
                self._outcome.num_wrong_tokens += _num_wrong(update.sequence, num_output)
        if self._checks_every_step:
            self._scheduler.check_invariants()

    def _next_tokens(self, batch: Batch) -> StepResult:
        finished = batch.finished_sequences
        begun = batch.every_sequence[len(finished) :]
        outputs = [*map(self._next_token, finished), *map(_nothing, begun)]
        return StepResult(outputs=tuple(outputs))

    def _next_token(self, scheduled: ScheduledSequence) -> SequenceOutput:
        if scheduled.sampling is None:
            return _nothing(scheduled)
        place = scheduled.num_output_tokens + 1
        is_last = place == self._num_output[scheduled.sequence_id]
        return SequenceOutput(sequence_id=scheduled.sequence_id, token_ids=(_STOP if is_last else place,))


def _nothing(scheduled: ScheduledSequence) -> SequenceOutput:
    return SequenceOutput(sequence_id=scheduled.sequence_id)


def _num_wrong(sequence: Sequence, num_output: int) -> int:
    """Compare with 1, 2, 3 ... and the stop token."""
    found = sequence.token_ids[sequence.num_prompt_tokens :]
    due = [*range(1, num_output), _STOP]
    return sum(token != right for token, right in zip(found, due, strict=False)) + abs(len(due) - len(found))


def queue_wait_s(sequence: Sequence) -> float:
    assert sequence.started_s is not None
    return sequence.started_s - sequence.arrival_s


def ttft_s(sequence: Sequence) -> float:
    assert sequence.first_token_s is not None
    return sequence.first_token_s - sequence.arrival_s


def latency_s(sequence: Sequence) -> float:
    assert sequence.last_token_s is not None
    return sequence.last_token_s - sequence.arrival_s


def percentile(values: SequenceOf[float], percent: int) -> float:
    return nearest_rank(sorted(values), percent)


def static_batch_waits_s(requests: SequenceOf[Request], costs: StepCosts, *, batch_size: int) -> list[float]:
    """Queue waits under static batching: up to `batch_size` start together and all end before the next."""
    now_s, first, waits = 0.0, 0, []
    while first < len(requests):
        now_s = max(now_s, requests[first].arrival_s)
        arrived = [r for r in requests[first : first + batch_size] if r.arrival_s <= now_s]
        first += len(arrived)
        waits += [now_s - request.arrival_s for request in arrived]
        now_s += _static_batch_s(arrived, costs)
    return waits


def _static_batch_s(batch: SequenceOf[Request], costs: StepCosts) -> float:
    """All prompts in one step each, then steps of all streams, ended ones as padding, to the longest."""
    prompts_s = sum(
        costs.step_s + r.num_prompt * (costs.prompt_token_s + costs.pair_s * r.num_prompt / 2) for r in batch
    )
    num_steps = max(r.num_output for r in batch)
    context = sum(r.num_prompt for r in batch) + len(batch) * num_steps / 2
    return prompts_s + num_steps * (costs.step_s + len(batch) * costs.stream_s + context * costs.context_s)


def next_tokens(batch: Batch) -> StepResult:
    """Some token for each sequence that is due one."""
    outputs = (
        SequenceOutput(sequence_id=s.sequence_id, token_ids=() if s.sampling is None else (1,))
        for s in batch.sequences
    )
    return StepResult(outputs=tuple(outputs))
