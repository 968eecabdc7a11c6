"""Keeps the last minute's latencies. Knows seconds; knows no requests, no clients, no engine.

TTFT runs from a request's last byte in to the first token's bytes out, queue included. ITL is each gap
between two tokens of one sequence; TPOT is one sequence's mean gap; queue is the wait for a first step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from appliance.engine.percentiles import PercentileReading, PercentileWindow
from appliance.observe.histogram import Histogram
from appliance.observe.request_ring import RequestRing

WINDOW_S = 60.0
# 32 streams of 20 tokens/s fill it in 13 s; sorting more takes longer than a watcher's second reading.
_GAP_CAPACITY = 8192
_REQUEST_CAPACITY = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyReading:
    """Percentiles over the last `window_s` seconds."""

    window_s: float
    ttft: PercentileReading
    tpot: PercentileReading
    itl: PercentileReading
    queue: PercentileReading


class LatencyRecorder:
    """Rolling latency percentiles; any thread may add and read."""

    def __init__(self, *, window_s: float = WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.requests = RequestRing()
        self._window_s = window_s
        self._ttft = PercentileWindow(window_s, _REQUEST_CAPACITY, clock)
        self._tpot = PercentileWindow(window_s, _REQUEST_CAPACITY, clock)
        self._itl = PercentileWindow(window_s, _GAP_CAPACITY, clock)
        self._queue = PercentileWindow(window_s, _REQUEST_CAPACITY, clock)

    def add_ttft(self, seconds: float) -> None:
        self._ttft.add(seconds)

    def add_gap(self, seconds: float) -> None:
        self._itl.add(seconds)

    def add_tpot(self, seconds: float) -> None:
        self._tpot.add(seconds)

    def add_queue(self, seconds: float) -> None:
        self._queue.add(seconds)

    def read(self) -> LatencyReading:
        return LatencyReading(
            window_s=self._window_s,
            ttft=self._ttft.read(),
            tpot=self._tpot.read(),
            itl=self._itl.read(),
            queue=self._queue.read(),
        )


class SequenceTiming:
    """One sequence's clock, from its request's last byte in. Feeds the recorder as it goes.

    `submitted_s` is when its sequence was submitted, now by default. `gaps` counts its gaps with those of the
    same model.
    """

    def __init__(
        self,
        recorder: LatencyRecorder,
        *,
        received_s: float,
        submitted_s: float | None = None,
        gaps: Histogram | None = None,
    ) -> None:
        self.clock = recorder.clock
        self._recorder = recorder
        self._gaps = gaps
        self._received_s = received_s
        self._submitted_s = recorder.clock() if submitted_s is None else submitted_s
        self._first_arrival_s: float | None = None
        self._last_arrival_s: float | None = None
        self._num_tokens = 0
        self.ttft_s: float | None = None
        self.queue_s: float | None = None
        self.longest_gap_s: float | None = None
        self.detokenize_s = 0.0

    @property
    def prepare_s(self) -> float:
        return self._submitted_s - self._received_s

    @property
    def total_s(self) -> float:
        return self._recorder.clock() - self._received_s

    @property
    def prefill_s(self) -> float | None:
        """From the first step until the first token came here."""
        if self._first_arrival_s is None:
            return None
        return max(0.0, self._first_arrival_s - self._submitted_s - (self.queue_s or 0.0))

    @property
    def decode_s(self) -> float | None:
        """From the first token to the last."""
        if self._first_arrival_s is None or self._last_arrival_s is None:
            return None
        return self._last_arrival_s - self._first_arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between tokens; None below two tokens."""
        if self.decode_s is None or self._num_tokens < 2:
            return None
        return self.decode_s / (self._num_tokens - 1)

    def tokens_arrived(self, num_tokens: int) -> None:
        """Several tokens of one step count as one gap and then gaps of zero: that is what a reader sees."""
        now = self._recorder.clock()
        if self._last_arrival_s is None:
            self._first_arrival_s = now
        else:
            self._add_gap(now - self._last_arrival_s)
        for _ in range(num_tokens - 1):
            self._add_gap(0.0)
        self._last_arrival_s = now
        self._num_tokens += num_tokens

    def _add_gap(self, seconds: float) -> None:
        self._recorder.add_gap(seconds)
        self.longest_gap_s = max(self.longest_gap_s or 0.0, seconds)
        if self._gaps is not None:
            self._gaps.add(seconds)

    def first_token_out(self) -> None:
        """The first token's bytes were handed to the socket; later calls change nothing."""
        if self.ttft_s is None and self._first_arrival_s is not None:
            self.ttft_s = self._recorder.clock() - self._received_s
            self._recorder.add_ttft(self.ttft_s)

    def finished(self, *, queue_s: float | None) -> None:
        self.queue_s = queue_s
        if self.tpot_s is not None:
            self._recorder.add_tpot(self.tpot_s)
        if queue_s is not None:
            self._recorder.add_queue(queue_s)
