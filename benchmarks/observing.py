"""What watching costs: CPU time that stage timing, logs, history and traces take per token and per request.

    python -m benchmarks.observing

Tokens go through the server's own `Generation` with its clock and with one that does nothing, in turns; the
rest of a request's instruments are run by themselves. Medians over rounds; exit code 1 past a bar.
"""

import io
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from appliance.engine.sequence import FinishReason
from appliance.engine.stream import FinishEvent, TokenEvent
from appliance.logs import JsonFormatter
from appliance.observe.histogram import SECONDS, Histogram
from appliance.observe.history import RequestHistory
from appliance.observe.latency import LatencyRecorder, SequenceTiming
from appliance.observe.otlp import encode_request
from appliance.observe.request_context import RequestContext, Stage, serving, timed
from appliance.observe.request_log import log_finished
from appliance.observe.request_record import RequestRecord
from appliance.observe.spans import Ended, spans_of
from appliance.observe.traceparent import TraceParent
from appliance.server.generation import Generation

TOKEN_BAR_US, REQUEST_BAR_US = 20.0, 300.0
_NUM_TOKENS, _NUM_REQUESTS, _ROUNDS = 20_000, 2_000, 9
_BATCH = 10  # requests whose spans are sent together: two seconds' at 5 requests a second
_RESOURCE = (("service.name", "appliance"),)
_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Tokens:
    """A stream whose tokens are all there."""

    def __init__(self, count: int) -> None:
        self._events: list[TokenEvent | FinishEvent] = [TokenEvent(token_ids=(7,)) for _ in range(count)]
        self._events.append(
            FinishEvent(
                reason=FinishReason.STOP,
                num_prompt_tokens=9,
                num_output_tokens=count,
                num_prefix_hit_tokens=0,
                queue_s=0.001,
            )
        )
        self._next = iter(self._events)

    def take(self, _wake: Callable[[], None]) -> TokenEvent | FinishEvent | None:
        return next(self._next, None)


class NoText:
    """Text that costs nothing: only the clock differs between the two runs."""

    is_stopped, num_thought_tokens, num_calls, stop = False, 0, 0, None

    def push(self, *_: object) -> list[object]:
        return []

    def flush(self) -> list[object]:
        return []


class NoTiming:
    """A clock that stands still."""

    detokenize_s = 0.0

    def clock(self) -> float:
        return 0.0

    def tokens_arrived(self, num_tokens: int) -> None:
        pass

    def first_token_out(self) -> None:
        pass

    def finished(self, *, queue_s: float | None) -> None:
        pass


def _read(timing: SequenceTiming | NoTiming) -> float:
    """CPU seconds for all tokens; what the answer does per write stands for each token too."""
    stream, text = Tokens(_NUM_TOKENS), NoText()
    generation = Generation(index=0, stream=stream, text=text, timing=timing, deadline_s=None)  # type: ignore[arg-type]
    send_s = 0.0
    began_s = time.process_time()
    for _ in generation.events(lambda: None):
        pass
    for _ in range(_NUM_TOKENS):
        sending_s = timing.clock()
        send_s += timing.clock() - sending_s
        timing.first_token_out()
    return time.process_time() - began_s


def token_us() -> float:
    """CPU time that watching adds to a token."""
    differences = []
    for _ in range(_ROUNDS):
        latency = LatencyRecorder()
        watched = SequenceTiming(latency, received_s=latency.clock(), gaps=Histogram(SECONDS))
        off_s, on_s = _read(NoTiming()), _read(watched)
        differences.append((on_s - off_s) / _NUM_TOKENS * 1e6)
    return median(differences)


def request_us() -> tuple[float, float]:
    """CPU time of one request's instruments, without and with spans, in turns."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("appliance.requests")
    logger.propagate, logger.level, logger.handlers = False, logging.INFO, [handler]
    plain, traced = [], []
    for _ in range(_ROUNDS):
        plain.append(_many_us(is_traced=False))
        traced.append(_many_us(is_traced=True))
    return median(plain), median(traced)


def _many_us(*, is_traced: bool) -> float:
    """Context, stages, record, ring, history, JSON line, spans; the history's thread counts."""
    latency = LatencyRecorder()
    with tempfile.TemporaryDirectory() as folder:
        history = RequestHistory(Path(folder) / "requests.sqlite")
        history.start()
        latency.requests.on_add = history.add
        began_s = time.process_time()
        for _ in range(_NUM_REQUESTS // _BATCH):
            ended = [Ended(_one_request(latency), "0" * 31 + "1", 200, time.time()) for _ in range(_BATCH)]
            if is_traced:
                spans = [span for one in ended for span in spans_of(one)]
                encode_request(spans, _RESOURCE, "appliance", "1")
        history.close()
        return (time.process_time() - began_s) / _NUM_REQUESTS * 1e6


def _one_request(latency: LatencyRecorder) -> RequestContext:
    context = RequestContext(
        request_id="chatcmpl-" + "0" * 32, path="/v1/chat/completions", parent=TraceParent.parse(_PARENT)
    )
    with serving(context):
        timing = SequenceTiming(latency, received_s=latency.clock())
        for stage in Stage:
            with timed(stage):
                pass
        timing.tokens_arrived(1)
        timing.first_token_out()
        timing.tokens_arrived(1)
        timing.finished(queue_s=0.001)
        context.record = record = _record(context, timing)
        latency.requests.add(record)
        log_finished(record)
    return context


def _record(context: RequestContext, timing: SequenceTiming) -> RequestRecord:
    return RequestRecord(
        request_id=context.request_id,
        model="model",
        service_class="silver",
        reason="stop",
        ended_unix_s=time.time(),
        prompt_tokens=9,
        output_tokens=2,
        prefix_hit_tokens=0,
        receive_s=0.001,
        parse_s=0.001,
        load_s=context.spent_s(Stage.LOAD),
        template_s=context.spent_s(Stage.TEMPLATE),
        tokenize_s=context.spent_s(Stage.TOKENIZE),
        grammar_s=context.spent_s(Stage.GRAMMAR),
        queue_s=timing.queue_s,
        prefill_s=timing.prefill_s,
        decode_s=timing.decode_s,
        longest_gap_s=timing.longest_gap_s,
        detokenize_s=timing.detokenize_s,
        send_s=0.001,
        ttft_s=timing.ttft_s,
        tpot_s=timing.tpot_s,
        total_s=timing.total_s,
    )


def main() -> int:
    plain_us, traced_us = request_us()
    results = (
        ("per token", token_us(), TOKEN_BAR_US),
        ("per request", plain_us, REQUEST_BAR_US),
        ("per request, traced", traced_us, REQUEST_BAR_US),
    )
    for name, found_us, bar_us in results:
        print(f"{name:<22} {found_us:7.1f} us of CPU time   bar {bar_us:g}")
    return int(any(found_us > bar_us for _, found_us, bar_us in results))


if __name__ == "__main__":
    sys.exit(main())
