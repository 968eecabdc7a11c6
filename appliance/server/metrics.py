"""`GET /metrics` for Prometheus. Reads what others counted, at the moment of a scrape; counts nothing itself.

Names begin with `vllm:` where boards for such servers expect them, else with `appliance_`.
"""

from collections.abc import Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING

from litestar import Response, route
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler

from appliance.engine.stats import EngineSnapshot
from appliance.observe.request_ring import ModelHistograms
from appliance.server.appliance_state import ApplianceState
from appliance.server.response_counts import ResponseCounts

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_LABEL = "model_name"
# name, what it is, from a snapshot
_GAUGES: tuple[tuple[str, str], ...] = (
    ("vllm:num_requests_running", "Sequences that are computed"),
    ("vllm:num_requests_waiting", "Sequences in the queue"),
    ("vllm:kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1"),
    ("vllm:gpu_cache_usage_perc", "The same under its older name, on any device"),
    ("appliance_output_tokens_per_second", "Output tokens over the last seconds"),
)
_COUNTERS: tuple[tuple[str, str], ...] = (
    ("vllm:prefix_cache_queries", "Prompt tokens that were looked up"),
    ("vllm:prefix_cache_hits", "Prompt tokens that were found computed"),
    ("vllm:num_preemptions", "Sequences that gave their pages back"),
    ("vllm:prompt_tokens", "Tokens of started prompts"),
    ("vllm:generation_tokens", "Tokens generated"),
    ("appliance_requests_rejected", "Sequences refused for a full queue or too long a wait"),
    ("appliance_requests_failed", "Sequences that failed"),
    ("appliance_kv_blocks_evicted", "Reusable pages given to others"),
    ("appliance_kv_blocks_saved", "Pages of preempted sequences copied to main memory"),
)
_HISTOGRAMS: tuple[tuple[str, str, str], ...] = (
    ("vllm:time_to_first_token_seconds", "ttft", "From a request's last byte in to its first token out"),
    ("vllm:inter_token_latency_seconds", "gap", "Gaps between tokens"),
    ("vllm:time_per_output_token_seconds", "gap", "The same under its older name"),
    ("vllm:request_time_per_output_token_seconds", "tpot", "A request's mean gap"),
    ("vllm:e2e_request_latency_seconds", "total", "From a request's last byte in to its end"),
    ("vllm:request_queue_time_seconds", "queue", "Wait for the first step"),
    ("vllm:request_prefill_time_seconds", "prefill", "From the first step to the first token"),
    ("vllm:request_decode_time_seconds", "decode", "From the first token to the last"),
    ("vllm:request_prompt_tokens", "prompt_tokens", "Prompt lengths"),
    ("vllm:request_generation_tokens", "output_tokens", "Answer lengths"),
)


class StateCollector:
    """What prometheus_client asks for at each scrape."""

    def __init__(self, state: ApplianceState, responses: ResponseCounts) -> None:
        self._state = state
        self._responses = responses

    def collect(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily(
            "appliance_ready", "1 when requests are answered", self._state.status.is_ready
        )
        yield GaugeMetricFamily("appliance_uptime_seconds", "Seconds since the start", self._state.uptime_s)
        answers = CounterMetricFamily("appliance_http_responses", "Answers by HTTP status", labels=["status"])
        for status, count in sorted(self._responses.by_status.copy().items()):
            answers.add_metric([str(status)], count)
        yield answers
        snapshots = {model.model_id: model.engine.snapshot() for model in self._state.pool.list()}
        yield from _gauges(snapshots)
        yield from _counters(snapshots)
        yield from _classes(snapshots)
        yield from _histograms(self._state.latency.requests.models())


def metrics_routes(state: ApplianceState, responses: ResponseCounts) -> list[HTTPRouteHandler]:
    """The handler of `/metrics`. The library is imported at the first scrape."""
    collector = StateCollector(state, responses)

    @route("/metrics", http_method=_LOOK, sync_to_thread=True)
    def get_metrics() -> Response[bytes]:
        body, content_type = exposition(collector)
        return Response(body, headers={"content-type": content_type})

    return [get_metrics]


def exposition(collector: StateCollector) -> tuple[bytes, str]:
    """The body and its type: the plain text format, which every scraper reads.

    In OpenMetrics the library writes the colons of names as underscores, and no board finds them.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


def _gauges(snapshots: dict[str, EngineSnapshot]) -> Iterable["Metric"]:
    from prometheus_client.core import GaugeMetricFamily

    families = [GaugeMetricFamily(name, text, labels=[_LABEL]) for name, text in _GAUGES]
    for model, engine in snapshots.items():
        usage = engine.num_used_blocks / engine.num_blocks if engine.num_blocks else 0.0
        values = (engine.num_running, engine.num_waiting, usage, usage, engine.output_tokens_per_s)
        for family, value in zip(families, values, strict=True):
            family.add_metric([model], value)
    return families


def _counters(snapshots: dict[str, EngineSnapshot]) -> Iterable["Metric"]:
    from prometheus_client.core import CounterMetricFamily

    families = [CounterMetricFamily(name, text, labels=[_LABEL]) for name, text in _COUNTERS]
    for model, engine in snapshots.items():
        values = (
            engine.num_prompt_tokens,
            engine.num_prefix_hit_tokens,
            engine.num_preemptions,
            engine.num_prompt_tokens,
            engine.num_output_tokens,
            engine.num_rejected,
            engine.num_failed,
            engine.num_evicted_blocks,
            engine.num_saved_blocks,
        )
        for family, value in zip(families, values, strict=True):
            family.add_metric([model], value)
    return families


def _classes(snapshots: dict[str, EngineSnapshot]) -> Iterable["Metric"]:
    """By service class, and where they wait by lane too."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = [_LABEL, "service_class"]
    waiting = GaugeMetricFamily("appliance_class_waiting", "Waiting sequences", labels=[*labels, "lane"])
    window = GaugeMetricFamily(
        "appliance_class_window_seconds", "Least time between admissions while classes compete", labels=labels
    )
    started = CounterMetricFamily("appliance_class_started", "Sequences that started", labels=labels)
    in_time = CounterMetricFamily("appliance_class_in_time", "Those that met the target", labels=labels)
    refused = CounterMetricFamily("appliance_class_refused", "Refused for a full queue", labels=labels)
    for model, engine in snapshots.items():
        for each in engine.classes:
            values = [model, each.service_class.value]
            waiting.add_metric([*values, "short"], each.num_waiting_short)
            waiting.add_metric([*values, "long"], each.num_waiting_long)
            started.add_metric(values, each.num_started)
            in_time.add_metric(values, each.num_in_time)
            refused.add_metric(values, each.num_refused)
            if each.admission_window_s is not None:
                window.add_metric(values, each.admission_window_s)
    return waiting, window, started, in_time, refused


def _histograms(models: dict[str, ModelHistograms]) -> Iterable["Metric"]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    for name, attribute, text in _HISTOGRAMS:
        family = HistogramMetricFamily(name, text, labels=[_LABEL])
        for model, histograms in models.items():
            reading = getattr(histograms, attribute).read()
            buckets = [("+Inf" if bound == inf else str(bound), count) for bound, count in reading.buckets]
            family.add_metric([model], buckets, reading.total)
        yield family
    ends = CounterMetricFamily(
        "vllm:request_success", "Finished requests by reason", labels=[_LABEL, "finished_reason"]
    )
    for model, histograms in models.items():
        for reason, count in sorted(histograms.ends.copy().items()):
            ends.add_metric([model, reason], count)
    yield ends
