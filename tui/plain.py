"""A snapshot as plain sentences, one fact a line, for screen readers and logs. Knows no terminal."""

from appliance.server.schemas import Percentiles, SystemSnapshot
from tui.figures import age, bare_rate, byte_count, count, seconds
from tui.targets import Targets

_NOT_YET = "not measured yet"


def plain_lines(snapshot: SystemSnapshot, targets: Targets | None = None) -> list[str]:
    """Name, colon, figures with their units; the alarms first."""
    alarms = targets.alarms(snapshot) if targets else []
    lines = [f"Alarm: {alarm.text}" for alarm in alarms]
    lines += [_state(snapshot), *_model(snapshot), *_requests(snapshot)]
    if snapshot.latency is not None:
        lines.append(_latency("Time to first token", snapshot.latency.ttft))
        lines.append(_latency("Time per output token", snapshot.latency.tpot))
        lines.append(_latency("Time in the queue", snapshot.latency.queue))
    return [*lines, *_kv(snapshot), *_machine(snapshot)]


def _state(snapshot: SystemSnapshot) -> str:
    detail = f", {snapshot.phase_detail}" if snapshot.phase_detail else ""
    share = "" if snapshot.phase_progress is None else f", {snapshot.phase_progress:.0%} done"
    return f"State: {snapshot.phase}{detail}{share}, up {age(snapshot.uptime_s)}"


def _model(snapshot: SystemSnapshot) -> list[str]:
    model = snapshot.model
    if model is None:
        return ["Model: none loaded"]
    return [
        (
            f"Model: {model.id}, weights {model.precision}, KV {model.kv_dtype}, "
            f"{model.backend} on {model.device}, context {count(model.context_length)} tokens"
        )
    ]


def _requests(snapshot: SystemSnapshot) -> list[str]:
    requests, throughput = snapshot.requests, snapshot.throughput
    lines = []
    if requests is not None:
        lines.append(
            f"Requests: {requests.running} running, {requests.waiting} waiting, "
            f"{requests.finished} finished, {requests.aborted} aborted, {requests.failed} failed, "
            f"{requests.rejected} rejected, {requests.preemptions} preempted"
        )
    if throughput is not None:
        lines.append(
            f"Throughput: {bare_rate(throughput.output_tokens_per_s)} output tokens per second, "
            f"{bare_rate(throughput.prompt_tokens_per_s)} prompt tokens per second, "
            f"{throughput.output_tokens} generated since the start"
        )
    return lines


def _latency(name: str, seen: Percentiles) -> str:
    if seen.p50_s is None:
        return f"{name}: {_NOT_YET}"
    figures = zip(("P50", "P95", "P99"), (seen.p50_s, seen.p95_s, seen.p99_s), strict=True)
    shown = ", ".join(f"{label} {seconds(value).strip()}" for label, value in figures)
    return f"{name}: {shown}, over {seen.count} request{'' if seen.count == 1 else 's'}"


def _kv(snapshot: SystemSnapshot) -> list[str]:
    kv = snapshot.kv
    if kv is None:
        return []
    used = kv.used_blocks / max(kv.num_blocks, 1)
    rate = _NOT_YET if kv.prefix_hit_rate is None else f"{kv.prefix_hit_rate:.0%}"
    return [
        (
            f"KV pool: {used:.0%} used, {kv.used_blocks} of {kv.num_blocks} blocks of {kv.block_size} "
            f"tokens, {kv.cached_blocks} cached, {kv.free_blocks} free, {byte_count(kv.pool_bytes).strip()}"
        ),
        f"KV prefix hits: {rate}; {kv.evicted_blocks} blocks evicted",
    ]


def _machine(snapshot: SystemSnapshot) -> list[str]:
    lines = []
    if snapshot.memory is not None:
        memory = snapshot.memory
        cpu = "" if snapshot.cpu_percent is None else f", CPU {snapshot.cpu_percent:.0f}% of one core"
        lines.append(
            f"Memory: {byte_count(memory.process_resident_bytes).strip()} of "
            f"{byte_count(memory.limit_bytes).strip()} used by the appliance, "
            f"{byte_count(memory.available_bytes).strip()} available{cpu}"
        )
    for gpu in snapshot.gpus:
        busy = "" if gpu.utilization_percent is None else f", {gpu.utilization_percent:.0f}% busy"
        lines.append(
            f"GPU {gpu.name}: {byte_count(gpu.memory_used_bytes).strip()} of "
            f"{byte_count(gpu.memory_total_bytes).strip()} used{busy}"
        )
    return lines
