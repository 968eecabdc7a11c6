"""What the engine tells about itself: counters, rates and the live sequences. Immutable once made."""

from dataclasses import dataclass

from appliance.engine.sequence import SequenceId, SequenceStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSnapshot:
    """One live sequence, as the dashboard's table shows it."""

    sequence_id: SequenceId
    status: SequenceStatus
    age_s: float
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    output_tokens_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """The engine at one moment. Blocks: used are referenced; cached are reusable; both leave `free`."""

    num_running: int
    num_waiting: int
    num_steps: int
    num_finished: int
    num_aborted: int
    num_failed: int
    num_rejected: int
    num_preemptions: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_prefix_hit_tokens: int
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    block_size: int
    num_blocks: int
    num_used_blocks: int
    num_cached_blocks: int
    sequences: tuple[SequenceSnapshot, ...]
