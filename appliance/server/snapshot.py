"""Gathers the SystemSnapshot that dashboards read. Knows where each number comes from; computes none."""

import asyncio
import os
import time

import msgspec

from appliance import __version__
from appliance.engine.percentiles import PercentileReading
from appliance.engine.stats import ClassSnapshot, EngineSnapshot, SequenceSnapshot
from appliance.model_pool import ResidentModel
from appliance.observe.gpus import GpuMonitor
from appliance.observe.latency import LatencyReading
from appliance.observe.resources import ProcessResources
from appliance.server.appliance_state import ApplianceState
from appliance.server.schemas import (
    ClassCounts,
    GpuSnapshot,
    KVSnapshot,
    LatencySnapshot,
    LayerLossSnapshot,
    LiveSequence,
    MemorySnapshot,
    ModelSnapshot,
    Percentiles,
    QualitySnapshot,
    RequestCounts,
    SystemSnapshot,
    Throughput,
)

# Many watchers share one reading: a CPU percentage over less than this says little.
FRESH_S = 0.25


class SnapshotSource:
    """Encoded snapshots, at most one every FRESH_S, however many watch."""

    def __init__(
        self,
        state: ApplianceState,
        *,
        resources: ProcessResources | None = None,
        gpus: GpuMonitor | None = None,
    ) -> None:
        self._state = state
        self._resources = resources or ProcessResources()
        self._gpus = gpus or GpuMonitor()
        self._lock = asyncio.Lock()
        self._encoded = b""
        self._read_s = float("-inf")

    async def read(self) -> bytes:
        """Return the snapshot as JSON."""
        async with self._lock:
            if time.monotonic() - self._read_s >= FRESH_S:
                self._encoded = await asyncio.to_thread(self._build)
                self._read_s = time.monotonic()
            return self._encoded

    def _build(self) -> bytes:
        """Sorts, reads files and asks drivers: kept off the event loop."""
        status = self._state.status
        model = self._state.first_model()
        engine = model.engine.snapshot() if model else None
        snapshot = SystemSnapshot(
            version=__version__,
            pid=os.getpid(),
            phase=status.phase,
            phase_detail=status.detail,
            phase_progress=status.progress,
            uptime_s=self._state.uptime_s,
            cpu_percent=self._resources.read_cpu_percent(),
            model=_model(model) if model else None,
            requests=_requests(engine) if engine else None,
            throughput=_throughput(engine) if engine else None,
            latency=_latency(self._state.latency.read()),
            kv=_kv(engine, model.facts.kv_pool_bytes) if engine and model else None,
            classes=tuple(map(_class, engine.classes)) if engine else (),
            memory=msgspec.convert(self._resources.read_memory(), MemorySnapshot, from_attributes=True),
            gpus=tuple(msgspec.convert(gpu, GpuSnapshot, from_attributes=True) for gpu in self._gpus.read()),
            sequences=tuple(map(_sequence, engine.sequences)) if engine else (),
        )
        return msgspec.json.encode(snapshot)


def _model(model: ResidentModel) -> ModelSnapshot:
    facts = model.facts
    return ModelSnapshot(
        id=model.model_id,
        architecture=facts.architecture,
        num_parameters=facts.num_parameters,
        context_length=facts.context_length,
        precision=facts.precision,
        kv_dtype=facts.kv_dtype,
        weights_bytes=facts.weights_bytes,
        backend=facts.backend,
        device=facts.device,
        num_threads=facts.num_threads,
        quality=msgspec.convert(facts.quality, QualitySnapshot, from_attributes=True)
        if facts.quality
        else None,
        layer_losses=msgspec.convert(facts.layer_losses, tuple[LayerLossSnapshot, ...], from_attributes=True),
    )


def _requests(engine: EngineSnapshot) -> RequestCounts:
    return RequestCounts(
        running=engine.num_running,
        waiting=engine.num_waiting,
        finished=engine.num_finished,
        aborted=engine.num_aborted,
        failed=engine.num_failed,
        rejected=engine.num_rejected,
        preemptions=engine.num_preemptions,
    )


def _throughput(engine: EngineSnapshot) -> Throughput:
    return Throughput(
        output_tokens_per_s=engine.output_tokens_per_s,
        prompt_tokens_per_s=engine.prompt_tokens_per_s,
        output_tokens=engine.num_output_tokens,
        prompt_tokens=engine.num_prompt_tokens,
        prefix_hit_tokens=engine.num_prefix_hit_tokens,
    )


def _kv(engine: EngineSnapshot, pool_bytes: int) -> KVSnapshot:
    return KVSnapshot(
        block_size=engine.block_size,
        num_blocks=engine.num_blocks,
        used_blocks=engine.num_used_blocks,
        cached_blocks=engine.num_cached_blocks,
        free_blocks=engine.num_free_blocks,
        pool_bytes=pool_bytes,
        wasted_slots=engine.num_wasted_slots,
        allocations=engine.num_allocations,
        refused_allocations=engine.num_refused_allocations,
        evicted_blocks=engine.num_evicted_blocks,
        prefix_hit_rate=engine.prefix_hit_rate,
        host_blocks=engine.num_host_places,
        used_host_blocks=engine.num_used_host_places,
        saved_blocks=engine.num_saved_blocks,
    )


def _class(counts: ClassSnapshot) -> ClassCounts:
    return ClassCounts(
        service_class=counts.service_class.value,
        running=counts.num_running,
        waiting_short=counts.num_waiting_short,
        waiting_long=counts.num_waiting_long,
        started=counts.num_started,
        in_time=counts.num_in_time,
        refused=counts.num_refused,
        target_s=counts.target_s,
        window_s=counts.admission_window_s,
    )


def _latency(reading: LatencyReading) -> LatencySnapshot:
    return LatencySnapshot(
        window_s=reading.window_s,
        ttft=_percentiles(reading.ttft),
        tpot=_percentiles(reading.tpot),
        itl=_percentiles(reading.itl),
        queue=_percentiles(reading.queue),
    )


def _percentiles(reading: PercentileReading) -> Percentiles:
    # By place: a named tuple's `count` is also a method of every tuple.
    return Percentiles(count=reading[0], p50_s=reading.p50, p95_s=reading.p95, p99_s=reading.p99)


def _sequence(sequence: SequenceSnapshot) -> LiveSequence:
    return LiveSequence(
        id=sequence.sequence_id,
        status=sequence.status.value,
        age_s=sequence.age_s,
        prompt_tokens=sequence.num_prompt_tokens,
        computed_tokens=sequence.num_computed_tokens,
        output_tokens=sequence.num_output_tokens,
        output_tokens_per_s=sequence.output_tokens_per_s,
    )
