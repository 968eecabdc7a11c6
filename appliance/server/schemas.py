"""The JSON of `/system/v1/`: what dashboards and scripts read. Kept apart from the clients' protocols."""

from typing import Literal

import msgspec

Phase = Literal["starting", "loading", "warming", "ready", "draining", "failed"]


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Over the window's requests (TTFT, TPOT, queue) or gaps (ITL). Seconds; None where nothing was seen."""

    count: int
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


class LatencySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Rolling percentiles over the last `window_s` seconds."""

    window_s: float
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    queue: Percentiles


class DomainSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What quantization cost in one kind of text. Divergences in nats, shares from 0 to 1."""

    perplexity: float
    reference_perplexity: float
    mean_kl: float
    p99_kl: float
    top1_agreement: float


class QualitySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What `appliance eval` last found of this file with these settings. `failures`: past their bounds."""

    variant: str
    against: str
    measured_s: float  # Unix seconds
    overall: DomainSnapshot
    domains: dict[str, DomainSnapshot]
    failures: tuple[str, ...]


class LayerLossSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What `appliance calibrate` found that a layer loses in INT8: worst error, effect in nats per token."""

    layer: int
    error: float
    effect: float
    num_kept: int  # matrices kept in 16 bits


class ModelSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The resident model."""

    id: str
    architecture: str
    num_parameters: int
    context_length: int
    precision: str
    kv_dtype: str
    weights_bytes: int
    backend: str
    device: str
    num_threads: int
    quality: QualitySnapshot | None = None
    layer_losses: tuple[LayerLossSnapshot, ...] = ()


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    running: int
    waiting: int
    finished: int
    aborted: int
    failed: int
    rejected: int
    preemptions: int


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over the last seconds; totals since the start."""

    output_tokens_per_s: float
    prompt_tokens_per_s: float
    output_tokens: int
    prompt_tokens: int
    prefix_hit_tokens: int


class KVSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The paged pool. used + cached + free = num_blocks. Counts run from the start.

    A refused allocation ends nothing: its request waits, or a later one gives its blocks back and resumes.
    """

    block_size: int
    num_blocks: int
    used_blocks: int
    cached_blocks: int
    free_blocks: int
    pool_bytes: int
    wasted_slots: int = 0  # places for tokens in used blocks, mostly last ones, that hold none
    allocations: int = 0
    refused_allocations: int = 0
    evicted_blocks: int = 0
    prefix_hit_rate: float | None = None  # of the prompts' tokens; None before the first
    host_blocks: int = 0  # places in main memory for blocks of preempted requests; 0 without a GPU
    used_host_blocks: int = 0
    saved_blocks: int = 0  # blocks that were copied there


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes. The limit is the machine's or the cgroup's, whichever is lower."""

    process_resident_bytes: int
    available_bytes: int
    limit_bytes: int


class GpuSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    memory_used_bytes: int
    memory_total_bytes: int
    utilization_percent: float | None = None
    temperature_c: float | None = None


class ClassCounts(msgspec.Struct, frozen=True, kw_only=True):
    """One service class, since the start. Those started `in_time` waited no longer than `target_s`.

    The window is the least time between admissions while classes compete; null where windows are off.
    """

    service_class: Literal["gold", "silver", "bronze"]
    running: int
    waiting_short: int  # by lane: short requests have one of their own
    waiting_long: int
    started: int
    in_time: int
    refused: int
    target_s: float
    window_s: float | None = None


class LiveSequence(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    status: Literal["waiting", "running", "finished"]
    age_s: float
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    output_tokens_per_s: float | None = None


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One log line. `number` counts from 1 since the start, `at_s` is in Unix seconds."""

    number: int
    at_s: float
    level: str
    logger: str
    message: str
    request_id: str = ""  # empty for a line of no request's


class LogEntries(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /system/v1/logs?after=NUMBER`: the kept lines past that number, oldest first."""

    pid: int  # numbers begin again with another process
    lines: tuple[LogEntry, ...]


class SystemSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /system/v1/snapshot`, and each `data:` of `GET /system/v1/events`."""

    version: str
    pid: int
    phase: Phase
    phase_detail: str = ""
    phase_progress: float | None = None  # 0 to 1 within the phase, where it is known
    uptime_s: float
    cpu_percent: float | None = None  # of this process; 100 is one core
    model: ModelSnapshot | None = None
    requests: RequestCounts | None = None
    throughput: Throughput | None = None
    latency: LatencySnapshot | None = None
    kv: KVSnapshot | None = None
    classes: tuple[ClassCounts, ...] = ()  # gold, silver, bronze
    memory: MemorySnapshot | None = None
    gpus: tuple[GpuSnapshot, ...] = ()
    sequences: tuple[LiveSequence, ...] = ()


class RequestStages(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request; see `docs/api.md` for what each stage is. None: not reached."""

    request_id: str
    model: str
    service_class: str
    reason: str
    ended_unix_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_hit_tokens: int
    receive_s: float
    parse_s: float
    load_s: float
    template_s: float
    tokenize_s: float
    grammar_s: float
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    longest_gap_s: float | None
    detokenize_s: float
    send_s: float
    ttft_s: float | None
    tpot_s: float | None
    total_s: float


class StagePercentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles over the requests of one group, stage by stage."""

    group: str
    stages: dict[str, Percentiles]


class FinishedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /system/v1/requests`: the requests that ended within the window, newest first."""

    window_s: float
    requests: list[RequestStages]
    percentiles: list[StagePercentiles]
