"""Decides which tokens run next. Knows blocks and counts; knows no tensors, clients or clocks.

There is no prefill phase and no decode phase: a step hands out tokens so that every sequence's
`num_computed_tokens` catches up with its `num_tokens`. Prompt chunks, prefix hits and recomputing after
preemption are all that one rule.
"""

from collections.abc import Iterator
from itertools import chain, islice

from appliance.engine.answer_room import answer_room
from appliance.engine.batch import (
    Batch,
    FailureKind,
    ScheduledSequence,
    SequenceOutput,
    StepResult,
)
from appliance.engine.block_pool import BlockPool
from appliance.engine.block_tables import BlockTables, has_computed_prompt, held_blocks
from appliance.engine.followers import Followers
from appliance.engine.headroom import Headroom
from appliance.engine.lateness import Lateness
from appliance.engine.lookahead import Shortage, next_tokens
from appliance.engine.output_taking import take_output
from appliance.engine.policy import ArrivalOrder, WaitingOrder
from appliance.engine.prompt_reading import PromptReadings
from appliance.engine.prompt_share import has_room, is_stream, share_among_streams, share_out
from appliance.engine.sequence import (
    FinishReason,
    SamplingParams,
    Sequence,
    SequenceId,
    SequenceStatus,
    ServiceClass,
)
from appliance.engine.sequence_update import SequenceUpdate
from appliance.engine.sliced_prompts import SlicedPrompts
from appliance.engine.start_counts import StartCounts
from appliance.engine.step_budget import FixedBudget, StepBudget
from appliance.engine.steps_in_flight import StepsInFlight
from appliance.engine.swap_space import HostMemory, SwapSpace
from appliance.engine.triage import Triage
from appliance.engine.waiting_queue import WaitingQueue


class Scheduler:
    """Owns every live sequence: `schedule`, then `update`, in turn. `schedule_next` adds a step in between.

    Running sequences stand in the order of their admission. When blocks run out the latest admitted is
    preempted, so the oldest always makes progress and, being bounded by the pool, ends. `num_layers` is told
    where the runner can compute some of the layers in one step and the others in the next.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_sequences: int,
        step_tokens: int,
        context_length: int,
        enable_prefix_cache: bool = True,
        order: WaitingOrder | None = None,
        budget: StepBudget | None = None,
        headroom: Headroom | None = None,
        triage: Triage | None = None,
        host: HostMemory | None = None,
        num_layers: int = 0,
    ) -> None:
        if min(max_sequences, step_tokens, context_length) < 1:
            raise ValueError("max_sequences, step_tokens and context_length must be at least 1")
        self.pool = pool
        # Every running sequence gets a token in every step, so more than the step holds cannot run.
        self.max_sequences = min(max_sequences, step_tokens)
        self.step_tokens = step_tokens
        self.context_length = context_length
        self.num_preemptions = 0
        self.num_prompt_tokens = 0  # of sequences that started, prefix hits included
        self.num_prefix_hit_tokens = 0
        self.swap = SwapSpace(host)
        self._tables = BlockTables(pool, self.swap, enable_prefix_cache=enable_prefix_cache)
        self._order = order or ArrivalOrder()
        self._budget = budget or FixedBudget(step_tokens)
        self._headroom = headroom or Headroom(share=0.0)
        self._triage = triage or Triage(short_work_tokens=0)
        self.waiting = WaitingQueue()
        self.prompt_budget = step_tokens  # prompt tokens that the last step might compute
        self._followers = Followers()
        self._readings = PromptReadings()
        self._sliced = SlicedPrompts(num_layers)
        self.starts = StartCounts()
        self._lateness = Lateness()
        self._running: dict[SequenceId, Sequence] = {}
        self.steps = StepsInFlight()
        self._shortage: Shortage | None = None

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self._followers)

    def num_waiting_in(self, service_class: ServiceClass) -> int:
        """How many of a class wait."""
        return sum(s.service_class is service_class for s in chain(self.waiting, self._followers))

    def admission_window_s(self, service_class: ServiceClass) -> float | None:
        """The least time between admissions of a class while classes compete; None without windows."""
        return self._order.window_s(service_class)

    @property
    def num_live(self) -> int:
        return self.num_running + self.num_waiting

    @property
    def num_open_places(self) -> int:
        """How many waiting sequences the next step would start, as far as the last one knew."""
        return 0 if self._shortage else self.max_sequences - len(self._running)

    def live_sequences(self) -> Iterator[Sequence]:
        """Running sequences by admission, then waiting ones, then those that wait for another's prompt."""
        yield from self._running.values()
        yield from self.waiting
        yield from self._followers

    def max_output_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """Return `params.max_tokens` cut to what the context and the whole pool leave.

        Raises PromptTooLong past the context, InvalidRequest for a sequence that can never run.
        """
        return answer_room(num_prompt_tokens, params, pool=self.pool, context_length=self.context_length)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, whose `max_output_tokens` came from this scheduler.

        A fork is held back until its leader has computed the prompt, and then takes over its blocks.
        """
        self._shortage = None
        self._triage.sort(sequence)
        self._lateness.watch(sequence)
        leader = sequence.fork_of
        if leader is None or leader.is_finished or has_computed_prompt(leader):
            self.waiting.add(sequence)
        else:
            self._followers.add(sequence)

    def abort(self, sequence_id: SequenceId, reason: FinishReason = FinishReason.ABORT) -> Sequence | None:
        """End a sequence in any state and return it, its blocks free.

        Returns None for one that is not live, and for one in a step in flight: `update` ends that one.
        """
        queued = self.waiting.get(sequence_id) or self._followers.get(sequence_id)
        sequence = self._running.get(sequence_id) or queued
        if sequence is None:
            return None
        if sequence_id in self.steps:
            self.steps.end_after(sequence_id, reason)
            return None
        self._finish(sequence, reason)
        return sequence

    def expire(self, now_s: float) -> list[Sequence]:
        """End, and return, sequences that are late: to start, or to end. No step may be in flight."""
        late = self._lateness.late(now_s)
        for sequence in late:
            self._finish(sequence, FinishReason.DEADLINE)
        return late

    def schedule(self, now_s: float = 0.0) -> Batch:
        """Choose the next step's tokens; empty only if nothing is live. `now_s` stamps first starts.

        Every stream gets one token, or what a grammar forces; prompts, new ones among them, share the budget.
        """
        assert not self.steps, "the last step was not updated"
        self._secure_blocks()
        streams: list[Sequence] = []
        prompts: list[Sequence] = []
        for sequence in self._running.values():
            is_prompt = not is_stream(sequence) or sequence.sequence_id in self._sliced
            (prompts if is_prompt else streams).append(sequence)
        stream_shares, room = share_among_streams(streams, self.step_tokens)
        budget = min(room, self._prompt_budget(streams, prompts))
        shares = []
        if not self._sliced.chunks:
            self._admit(prompts, budget, now_s)
            shares = self._readings.cut(share_out(prompts, budget))
        # In this order: who writes to a shared block first gets the copy.
        sequences = tuple([self._scheduled(sequence, num_new) for sequence, num_new in stream_shares])
        chunks = self._sliced.chunks or tuple([self._scheduled(sequence, num) for sequence, num in shares])
        piece = None
        if chunks and budget:
            piece = self._sliced.next_slice(chunks, self._budget.share(streams, chunks))
            sequences += chunks if piece is None else ()
        saves, restores = self.swap.take_copies()
        batch = Batch(sequences=sequences, slice=piece, saves=saves, restores=restores)
        assert batch or not self.num_live, "live sequences but no work"
        return self.steps.begin(batch, now_s)

    def schedule_next(self, now_s: float = 0.0) -> Batch:
        """Choose the step after the one in flight before its tokens are known; empty where they matter."""
        shortage, num_available = self._shortage, self.pool.num_available
        is_short = shortage is not None and shortage.lasts(self.num_waiting, num_available, now_s)
        is_full = self.num_running >= self.max_sequences or (is_short and self.steps.is_past_prompts)
        is_open = self.num_waiting > 0 and not is_full
        is_sure = not is_open and not self._lateness.is_due(now_s)
        sequences = next_tokens(self.steps, self._running, self._tables) if is_sure else ()
        return self.steps.begin(Batch(sequences=sequences), now_s)

    def update(self, batch: Batch, result: StepResult, now_s: float = 0.0) -> list[SequenceUpdate]:
        """Take in a step's result, in the batch's order, and say what each sequence got from it."""
        self._budget.observe(batch, self.steps.finish(batch, now_s))
        self._settle_copies(result)
        pairs = zip(batch.every_sequence, result.outputs, strict=True)
        finished = islice(pairs, len(batch.finished_sequences))
        # Those that run: others ended with the step before, when this one was in flight already.
        updates = [self._apply(s, output, now_s) for s, output in finished if s.sequence_id in self._running]
        for scheduled, output in pairs:  # layers are missing
            if output.failure is not None or self.steps.is_ending(scheduled.sequence_id):
                updates.append(self._end_in_step(scheduled, output))
        return updates

    def check_invariants(self) -> None:
        """Assert that every block is accounted for and every sequence is in one consistent state."""
        self.pool.check_invariants(map(held_blocks, self.live_sequences()))
        self.swap.check_invariants(s.sequence_id for s in self.waiting)
        assert len(self._running) <= self.max_sequences
        for sequence in chain(self.waiting, self._followers):
            assert sequence.status is SequenceStatus.WAITING
            assert not held_blocks(sequence)
            assert sequence.num_computed_tokens == 0
        for sequence in self._followers:
            leader = sequence.fork_of
            assert leader is not None, "a follower without a leader"
            assert leader.sequence_id in self._running or self.waiting.get(leader.sequence_id)
            assert not has_computed_prompt(leader), "a follower was forgotten"
        for sequence in self._running.values():
            assert sequence.status is SequenceStatus.RUNNING
            assert sequence.num_computed_tokens < sequence.num_tokens
            assert sequence.num_computed_tokens <= len(sequence.block_table) * self.pool.block_size
        for chunk in self._sliced.chunks:
            assert self._running[chunk.sequence_id].num_computed_tokens == chunk.num_computed_tokens

    def _secure_blocks(self) -> None:
        """Give running sequences blocks for their known tokens, oldest first, preempting the latest."""
        for sequence in self._tables.lacking(self._running.values()):
            while sequence.status is SequenceStatus.RUNNING and not self._tables.grow(sequence):
                self._preempt(next(reversed(self._running.values())))

    def _preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to the head of the queue with its tokens.

        What was computed of them is kept in host memory or computed again, whichever takes less time.
        """
        assert len(self._running) > 1, "a lone sequence outgrew the pool"
        num_computed = sequence.num_computed_tokens
        if self.swap.num_places:
            recompute_s = self._budget.prompt_s(num_computed)
            self.swap.save(sequence, self.pool.blocks_for(num_computed), recompute_s)
        self._return_to_queue(sequence)

    def _return_to_queue(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add_first(sequence)

    def _settle_copies(self, result: StepResult) -> None:
        """After a step that failed as a whole nobody knows whether its copies were made: compute again."""
        moved = self.swap.settle()
        if not moved:
            return
        has_failed = any(o.failure and o.failure.kind is FailureKind.RUNNER for o in result.outputs)
        served = {output.sequence_id for output in result.outputs}
        for sequence in [s for s in self.live_sequences() if s.sequence_id in moved]:
            if not has_failed:
                self._tables.publish_restored(sequence)
                continue
            self.swap.forget(sequence)
            if sequence.sequence_id in self._running.keys() - served:
                self._return_to_queue(sequence)

    def _prompt_budget(self, streams: list[Sequence], prompts: list[Sequence]) -> int:
        if prompts or (self.waiting and len(self._running) < self.max_sequences):
            self.prompt_budget = self._budget.prompt_tokens(streams, prompts, num_waiting=self.num_waiting)
        return self.prompt_budget

    def _admit(self, prompts: list[Sequence], budget: int, now_s: float) -> None:
        """Start waiting sequences, as long as places, blocks and the budget allow; they join `prompts`."""
        self._shortage = None
        while self.waiting and len(self._running) < self.max_sequences:
            sequence = self._next_start(prompts, budget, now_s)
            if sequence is None:
                return
            self._start(sequence, now_s)
            prompts.append(sequence)

    def _next_start(self, prompts: list[Sequence], budget: int, now_s: float) -> Sequence | None:
        """The best candidate that gets tokens and blocks, its blocks claimed."""
        num_running = len(self._running)
        candidates = self._order.candidates(
            self.waiting, now_s, num_running=num_running, num_places=self.max_sequences - num_running
        )
        for sequence, is_urgent in candidates:
            if not has_room(sequence, prompts, budget):
                continue
            num_left_over = self._headroom.reserve(sequence, self._running.values(), self.pool)
            if self._tables.claim(sequence, num_left_over=num_left_over):
                return sequence
            self._shortage = Shortage(self.num_waiting, self.pool.num_available, now_s)
            if is_urgent:
                return None
        return None

    def _start(self, sequence: Sequence, now_s: float) -> None:
        if sequence.started_s is None:
            self._order.started(sequence, self.waiting, now_s)
        self.waiting.discard(sequence)
        self._running[sequence.sequence_id] = sequence
        sequence.status = SequenceStatus.RUNNING
        if sequence.started_s is None:  # a resumed sequence finds its own blocks: no hit of the prompt
            sequence.started_s = now_s
            self.starts.count(sequence, now_s)
            sequence.num_prefix_hit_tokens = sequence.num_computed_tokens
            self.num_prompt_tokens += sequence.num_prompt_tokens
            self.num_prefix_hit_tokens += sequence.num_prefix_hit_tokens

    def _scheduled(self, sequence: Sequence, num_new: int) -> ScheduledSequence:
        first = sequence.num_computed_tokens
        end = first + num_new
        token_ids, num_prompt_tokens = sequence.token_ids, sequence.num_prompt_tokens
        block_copy = None if sequence.spare_block is None else self._tables.own_next_block(sequence)
        is_last = end == len(token_ids)
        table = sequence.block_table
        return ScheduledSequence(
            sequence_id=sequence.sequence_id,
            new_token_ids=(token_ids[first],) if num_new == 1 else tuple(token_ids[first:end]),
            num_computed_tokens=first,
            block_table=table if is_last else table[: self.pool.blocks_for(end)],
            known_token_ids=token_ids,
            num_prompt_tokens=num_prompt_tokens,
            sampling=sequence.params if is_last else None,
            block_copy=block_copy,
            constraint=sequence.constraint,
            prompt_read=self._readings.wanted(sequence) if first < num_prompt_tokens else None,
        )

    def _apply(self, scheduled: ScheduledSequence, output: SequenceOutput, now_s: float) -> SequenceUpdate:
        """Take in what was computed of a sequence whose new tokens are done."""
        if output.failure is not None:
            return self._end_in_step(scheduled, output)
        sequence = self._running[scheduled.sequence_id]
        self._tables.advance(sequence, len(scheduled.new_token_ids))
        if scheduled.prompt_read is not None:
            self._readings.take(scheduled, output)
        if self._followers and has_computed_prompt(sequence):
            for follower in reversed(self._followers.release(sequence)):
                self.waiting.add_first(follower)
        if self.steps.is_ending(scheduled.sequence_id):
            return self._end_in_step(scheduled, output)
        update, reason = take_output(sequence, output, self._readings, now_s)
        if reason is not None:
            self._finish(sequence, reason)
        return update

    def _end_in_step(self, scheduled: ScheduledSequence, output: SequenceOutput) -> SequenceUpdate:
        """End a sequence that failed in this step, or was aborted while it ran."""
        sequence = self._running[scheduled.sequence_id]
        reason = self.steps.take_ending(scheduled.sequence_id) or FinishReason.ERROR
        if output.failure is not None:
            reason, sequence.failure = FinishReason.ERROR, output.failure.message
            self._tables.forget(sequence)  # what broke this one may lie in its blocks
        self._finish(sequence, reason)
        return SequenceUpdate(sequence=sequence, failure=output.failure)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._leave(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        self._triage.ended(sequence)
        self._readings.forget(sequence)
        self._lateness.ended(sequence)
        self.swap.forget(sequence)
        heir = self._followers.succeed(sequence)
        if heir is not None:
            self.waiting.add_first(heir)

    def _leave(self, sequence: Sequence) -> None:
        self._running.pop(sequence.sequence_id, None)
        self.waiting.discard(sequence)
        self._followers.discard(sequence.sequence_id)
        self._shortage = None
        self._sliced.drop_with(sequence.sequence_id)
        self._tables.release(sequence)
