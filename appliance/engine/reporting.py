"""Makes an EngineSnapshot of the engine's parts as they stand. Changes none of them."""

from collections import Counter

from appliance.engine.admission_window import TARGETS_S
from appliance.engine.block_tables import held_blocks
from appliance.engine.counters import Counters
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import Lane, Sequence, SequenceStatus, ServiceClass
from appliance.engine.stats import ClassSnapshot, EngineSnapshot, SequenceSnapshot


def take_snapshot(scheduler: Scheduler, counters: Counters, now_s: float) -> EngineSnapshot:
    """Read everything at one moment; the caller holds the engine's lock."""
    live = tuple(scheduler.live_sequences())
    return EngineSnapshot(
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_steps=counters.num_steps,
        num_finished=counters.num_finished,
        num_aborted=counters.num_aborted,
        num_failed=counters.num_failed,
        num_rejected=counters.num_rejected,
        num_preemptions=scheduler.num_preemptions,
        num_prompt_tokens=scheduler.num_prompt_tokens,
        num_output_tokens=counters.num_output_tokens,
        num_prefix_hit_tokens=scheduler.num_prefix_hit_tokens,
        prompt_tokens_per_s=counters.prompt_rate.per_s(now_s),
        output_tokens_per_s=counters.output_rate.per_s(now_s),
        block_size=scheduler.pool.block_size,
        num_blocks=scheduler.pool.num_blocks,
        num_used_blocks=scheduler.pool.num_used,
        num_cached_blocks=scheduler.pool.num_cached,
        num_wasted_slots=_num_wasted_slots(scheduler),
        num_allocations=scheduler.pool.counters.num_allocations,
        num_refused_allocations=scheduler.pool.counters.num_refused_allocations,
        num_evicted_blocks=scheduler.pool.counters.num_evicted_blocks,
        num_host_places=scheduler.swap.num_places,
        num_used_host_places=scheduler.swap.num_used_places,
        num_saved_blocks=scheduler.swap.num_saved_blocks,
        sequences=tuple(_sequence_snapshot(sequence, now_s) for sequence in live),
        step_tokens=scheduler.step_tokens,
        num_budget_tokens=scheduler.prompt_budget,
        classes=_class_snapshots(scheduler, counters, live),
    )


def _class_snapshots(
    scheduler: Scheduler, counters: Counters, live: tuple[Sequence, ...]
) -> tuple[ClassSnapshot, ...]:
    count = Counter((s.service_class, s.lane, s.status.value) for s in live)
    return tuple(
        ClassSnapshot(
            service_class=each,
            num_running=sum(count[each, lane, "running"] for lane in Lane),
            num_waiting_short=count[each, Lane.SHORT, "waiting"],
            num_waiting_long=count[each, Lane.LONG, "waiting"],
            num_refused=counters.num_refused[each],
            num_started=scheduler.starts.num_started[each],
            num_in_time=scheduler.starts.num_in_time[each],
            target_s=TARGETS_S[each],
            admission_window_s=scheduler.admission_window_s(each),
        )
        for each in ServiceClass
    )


def _num_wasted_slots(scheduler: Scheduler) -> int:
    """Places for tokens in blocks of running sequences, most of them last blocks, without a token."""
    size = scheduler.pool.block_size
    running = (s for s in scheduler.live_sequences() if s.status is SequenceStatus.RUNNING)
    return sum(len(held_blocks(s)) * size - s.num_tokens for s in running)


def _sequence_snapshot(sequence: Sequence, now_s: float) -> SequenceSnapshot:
    return SequenceSnapshot(
        sequence_id=sequence.sequence_id,
        status=sequence.status,
        age_s=now_s - sequence.arrival_s,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_output_tokens=sequence.num_output_tokens,
        output_tokens_per_s=_output_tokens_per_s(sequence),
    )


def _output_tokens_per_s(sequence: Sequence) -> float | None:
    """The first token has no gap before it, so a rate needs two."""
    if sequence.first_token_s is None or sequence.last_token_s is None:
        return None
    span_s = sequence.last_token_s - sequence.first_token_s
    return (sequence.num_output_tokens - 1) / span_s if span_s > 0 else None
