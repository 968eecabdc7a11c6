"""Takes prompts in and gives token streams out; runs the steps. Knows no tensors, text or protocols.

One lock guards the scheduler, the streams and the counters. It is held to schedule and to deliver, never
while a step runs, so `submit`, `abort` and `snapshot` wait for bookkeeping only. One thread steps.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from appliance.engine.batch import Batch, Runner, StepFailure, StepResult
from appliance.engine.constraint import Constraint
from appliance.engine.counters import Counters
from appliance.engine.reporting import take_snapshot
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import FinishReason, SamplingParams, Sequence, SequenceId, ServiceClass
from appliance.engine.sequence_update import SequenceUpdate
from appliance.engine.stats import EngineSnapshot
from appliance.engine.step_runs import LaunchedStep, StepRuns, runner_failure
from appliance.engine.stream import MOST_UNREAD, FinishEvent, TokenEvent, TokenStream
from appliance.engine.waiting_queue import QueuePlace
from appliance.errors import NotReady, QueueFull

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Live:
    """A sequence that has not ended, and where its tokens go."""

    sequence: Sequence
    stream: TokenStream


class Engine:
    """Generates for many clients at once. Everything but `step` may be called from any thread.

    `queue_limit` bounds the sequences of each service class that wait, beyond those that the next step can
    start, so that one class cannot fill the queue of another; `most_unread` bounds what may gather in a
    stream that nobody reads before its sequence is ended.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        queue_limit: int = 256,
        most_unread: int = MOST_UNREAD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = StepRuns(runner, self._break)
        self._ahead: LaunchedStep | None = None  # launched before the last step's tokens were known
        self._scheduler = scheduler
        self._queue_limit = queue_limit
        self._most_unread = most_unread
        self._clock = clock
        self._changed = threading.Condition()
        self._live: dict[SequenceId, _Live] = {}
        self._sequence_ids = itertools.count(1)
        self._counters = Counters()
        self._refusal: str | None = None  # why new work is not taken
        self._breakage: str | None = None
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    @property
    def num_live(self) -> int:
        """Sequences that run or wait."""
        return len(self._live)

    @property
    def refusal(self) -> str | None:
        """Why new work is not taken, or None while it is."""
        return self._refusal

    @property
    def breakage(self) -> str | None:
        """Why nothing will run any more, or None while all is well: its device is gone, or it failed."""
        return self._breakage

    def submit(
        self,
        prompt_token_ids: SequenceOf[int],
        params: SamplingParams,
        *,
        deadline_s: float | None = None,
        end_within_s: float | None = None,
        service_class: ServiceClass = ServiceClass.SILVER,
        cache_salt: str = "",
        constraint: Constraint | None = None,
    ) -> TokenStream:
        """Queue a generation that may wait `deadline_s` for its first step and end after `end_within_s`.

        Past the latter it ends with DEADLINE and the tokens so far. Prompts share cached blocks only under
        the same `cache_salt`; `constraint` is this sequence's alone. Raises InvalidRequest, PromptTooLong,
        QueueFull, or NotReady while the engine drains or has stopped.
        """
        (stream,) = self.submit_choices(
            prompt_token_ids,
            (params,),
            deadline_s=deadline_s,
            end_within_s=end_within_s,
            service_class=service_class,
            cache_salt=cache_salt,
            constraints=(constraint,),
        )
        return stream

    def submit_choices(
        self,
        prompt_token_ids: SequenceOf[int],
        choices: SequenceOf[SamplingParams],
        *,
        deadline_s: float | None = None,
        end_within_s: float | None = None,
        service_class: ServiceClass = ServiceClass.SILVER,
        cache_salt: str = "",
        constraints: SequenceOf[Constraint | None] | None = None,
    ) -> tuple[TokenStream, ...]:
        """Queue several answers to one prompt, which is computed once; all of them or none.

        `constraints` has one for each choice, or is None where nobody has any.
        """
        now_s = self._clock()
        sequences: list[Sequence] = []
        for params, constraint in zip(choices, constraints or (None,) * len(choices), strict=True):
            sequence = Sequence(
                sequence_id=SequenceId(next(self._sequence_ids)),
                token_ids=list(prompt_token_ids),
                num_prompt_tokens=len(prompt_token_ids),
                params=params,
                max_output_tokens=self._scheduler.max_output_tokens(len(prompt_token_ids), params),
                arrival_s=now_s,
                deadline_s=None if deadline_s is None else now_s + deadline_s,
                end_by_s=None if end_within_s is None else now_s + end_within_s,
                service_class=service_class,
                cache_salt=cache_salt,
                fork_of=sequences[0] if sequences and not params.reads_prompt else None,
                constraint=constraint,
            )
            sequences.append(sequence)
        with self._changed:
            self._check_admission(sequences[0].service_class, len(sequences), now_s)
            streams = tuple(self._enter(sequence) for sequence in sequences)
            self._changed.notify_all()
        return streams

    def abort(self, sequence_id: SequenceId, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a sequence now, or after the step it is in. Unknown and ended ones are left alone."""
        with self._changed:
            if sequence_id not in self._live:
                return
            sequence = self._scheduler.abort(sequence_id, reason)
            if sequence is not None:
                self._end(sequence)

    def step(self) -> bool:
        """Run one step for the sequences that are due; False if there was nothing to do.

        Where the runner can, the step after it is started first, so that its device is never idle.
        """
        start_s = self._clock()
        step = self._ahead or self._launch(start_s)
        if step is None:
            return False
        self._ahead = self._launch_next(step, start_s)
        self._deliver(step.batch, self._runs.collect(step), start_s)
        return True

    def start(self) -> None:
        """Start the thread that steps while there is work and sleeps while there is none."""
        assert self._thread is None, "the engine was started before"
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Refuse new work from now on; what is live goes on."""
        self._refuse("the appliance is stopping and takes no new requests; try again once it is back")

    def stop(self, drain_s: float = 0.0) -> None:
        """Drain for at most `drain_s` seconds, end what is left with ABORT, and stop the thread.

        A second call, from another thread, cuts the first one's wait short.
        """
        self.drain()
        with self._changed:
            if self._thread is not None:
                self._changed.wait_for(lambda: not self.num_live, timeout=drain_s)
            self._is_stopping = True
            for sequence_id in list(self._live):
                self.abort(sequence_id)
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def snapshot(self) -> EngineSnapshot:
        """Return the engine's state at this moment."""
        with self._changed:
            return take_snapshot(self._scheduler, self._counters, self._clock())

    def queue_place(self, sequence_id: SequenceId) -> QueuePlace | None:
        """Where a sequence stands among those of its class that wait for their first start; else None."""
        with self._changed:
            return self._scheduler.waiting.place(sequence_id)

    def _enter(self, sequence: Sequence) -> TokenStream:
        stream = TokenStream(sequence.sequence_id, self.abort, most_unread=self._most_unread)
        self._live[sequence.sequence_id] = _Live(sequence, stream)
        self._scheduler.add(sequence)
        return stream

    def _check_admission(self, service_class: ServiceClass, num_new: int, now_s: float) -> None:
        if self._refusal is not None:
            raise NotReady(self._refusal)
        num_waiting = self._scheduler.num_waiting_in(service_class)
        if num_waiting + num_new > self._queue_limit + self._scheduler.num_open_places:
            self._counters.num_rejected += num_new
            self._counters.num_refused[service_class] += num_new
            retry_after_s = self._counters.retry_after_s(service_class, num_waiting, now_s)
            raise QueueFull(num_waiting=num_waiting, limit=self._queue_limit, retry_after_s=retry_after_s)

    def _refuse(self, why: str) -> None:
        with self._changed:
            self._refusal = self._refusal or why

    def _break(self, why: str) -> None:
        self._refuse(why)
        self._breakage = self._breakage or why

    def _launch(self, now_s: float) -> LaunchedStep | None:
        with self._changed:
            for sequence in self._scheduler.expire(now_s):
                self._end(sequence)
            batch = self._scheduler.schedule(now_s)
        return self._runs.launch(batch) if batch else None

    def _launch_next(self, step: LaunchedStep, now_s: float) -> LaunchedStep | None:
        if not self._runs.leads(step):
            return None
        with self._changed:
            batch = self._scheduler.schedule_next(now_s)
        if not batch:
            return None
        following = self._runs.launch_next(step, batch)
        if following is None:
            with self._changed:
                self._scheduler.steps.withdraw()
        return following

    def _deliver(self, batch: Batch, result: StepResult, start_s: float) -> None:
        with self._changed:
            now_s = self._clock()
            updates = self._scheduler.update(batch, result, now_s)
            num_output_tokens = 0
            for update in updates:
                num_output_tokens += len(update.token_ids)
                if update.sequence.is_finished:
                    self._end(update.sequence, _token_event(update), update.failure)
                elif update.token_ids:
                    sequence_id = update.sequence.sequence_id
                    if not self._live[sequence_id].stream.push(_token_event(update)):
                        self.abort(sequence_id, FinishReason.UNREAD)
            self._counters.count_step(batch, num_output_tokens, start_s=start_s, end_s=now_s)

    def _end(
        self, sequence: Sequence, tokens: TokenEvent | None = None, failure: StepFailure | None = None
    ) -> None:
        now_s = self._clock()
        self._counters.count_end(sequence, now_s)
        stream = self._live.pop(sequence.sequence_id).stream
        stream.push(tokens, _finish_event(sequence, failure, now_s))
        if not self.num_live:
            self._changed.notify_all()  # stop() may be waiting for this

    def _loop(self) -> None:
        try:
            while self._wait_for_work():
                self.step()
        except Exception as error:  # the outermost frame of this thread: every request must hear of it
            logger.exception("the engine stopped after an error of its own")
            self._fail_everything(error)

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self.num_live or self._ahead)
            return self._ahead is not None or not self._is_stopping

    def _fail_everything(self, error: Exception) -> None:
        """Leave no client waiting. Does not trust the scheduler, which may be broken."""
        failure = runner_failure(error)
        self._break(
            "the engine stopped after an error of its own, which the log shows; restart the appliance"
        )
        with self._changed:
            self._is_stopping = True
            for live in list(self._live.values()):
                live.sequence.finish_reason = FinishReason.ERROR
                self._end(live.sequence, failure=failure)


def _token_event(update: SequenceUpdate) -> TokenEvent | None:
    if not update.token_ids:
        return None
    return TokenEvent(
        token_ids=update.token_ids,
        logprobs=update.logprobs,
        hidden_state=update.hidden_state,
        ends_with_stop_token=update.ends_with_stop_token,
        prompt_logprobs=update.prompt_logprobs,
    )


def _finish_event(sequence: Sequence, failure: StepFailure | None, now_s: float) -> FinishEvent:
    assert sequence.finish_reason is not None
    return FinishEvent(
        reason=sequence.finish_reason,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_output_tokens=sequence.num_output_tokens,
        num_prefix_hit_tokens=sequence.num_prefix_hit_tokens,
        queue_s=(now_s if sequence.started_s is None else sequence.started_s) - sequence.arrival_s,
        failure=failure,
    )
