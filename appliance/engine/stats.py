"""What the engine tells about itself: counters, rates and the live sequences. Immutable once made."""

from dataclasses import dataclass

from appliance.engine.sequence import SequenceId, SequenceStatus, ServiceClass


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
class ClassSnapshot:
    """One service class. Its window is the least time between its admissions while classes compete."""

    service_class: ServiceClass
    num_running: int
    num_waiting_short: int  # by lane: expected work up to the limit, or beyond
    num_waiting_long: int
    num_refused: int  # since the start, for a full queue
    num_started: int  # since the start
    num_in_time: int  # of those, after no more than the wait that the class is promised
    target_s: float  # that wait
    admission_window_s: float | None  # None without windows


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """The engine at one moment. Blocks: used are referenced; cached are reusable; both leave `free`.

    A refused allocation ends nothing: its sequence waits, or a later one is preempted for it.
    `num_budget_tokens` is how many prompt tokens the last step with prompts might compute, of the
    `step_tokens` that a step holds at most.
    """

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
    num_wasted_slots: int  # token places in used blocks, mostly last ones, that hold no token
    num_allocations: int
    num_refused_allocations: int
    num_evicted_blocks: int
    num_host_places: int  # for blocks of preempted sequences in main memory; 0 without a GPU
    num_used_host_places: int
    num_saved_blocks: int  # since the start, to there
    sequences: tuple[SequenceSnapshot, ...]
    step_tokens: int
    num_budget_tokens: int
    classes: tuple[ClassSnapshot, ...]  # gold, silver, bronze

    @property
    def num_free_blocks(self) -> int:
        return self.num_blocks - self.num_used_blocks - self.num_cached_blocks

    @property
    def allocation_success(self) -> float | None:
        """Share of allocations that were granted at once."""
        if not self.num_allocations:
            return None
        return 1 - self.num_refused_allocations / self.num_allocations

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of the started prompts' tokens that were found computed."""
        return self.num_prefix_hit_tokens / self.num_prompt_tokens if self.num_prompt_tokens else None
