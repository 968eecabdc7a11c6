"""What the engine has done: totals and recent rates. Knows counts and times; knows no sequences' content."""

import math
from collections import deque
from dataclasses import dataclass, field

from appliance.engine.batch import Batch
from appliance.engine.sequence import FinishReason, Sequence, ServiceClass

_RATE_WINDOW_S = 5.0
_FINISH_WINDOW_S = 30.0  # sequences end far less often than tokens come
_MOST_RETRY_S = 60
_BUCKETS = 20


@dataclass(slots=True)
class _Bucket:
    """Work that ended within one slice of the window; `start_s` is when the first of it began."""

    index: int
    start_s: float
    amount: int


class RateWindow:
    """An amount per second over about the last `window_s` seconds, in a bounded number of buckets."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._bucket_s = window_s / _BUCKETS
        self._buckets: deque[_Bucket] = deque()

    def add(self, amount: int, *, start_s: float, end_s: float) -> None:
        """Count an amount that took from `start_s` to `end_s` to come about. Times do not go back."""
        self._drop_old(end_s)
        index = math.floor(end_s / self._bucket_s)
        if self._buckets and self._buckets[-1].index == index:
            bucket = self._buckets[-1]
            bucket.amount += amount
            bucket.start_s = min(bucket.start_s, start_s)
        else:
            self._buckets.append(_Bucket(index, start_s, amount))

    def per_s(self, now_s: float) -> float:
        """Return the rate since the oldest work in the window began, so that a first reading is not low."""
        self._drop_old(now_s)
        if not self._buckets:
            return 0.0
        span_s = max(now_s - min(b.start_s for b in self._buckets), self._bucket_s)
        return sum(b.amount for b in self._buckets) / span_s

    def _drop_old(self, now_s: float) -> None:
        oldest = math.floor((now_s - self._window_s) / self._bucket_s)
        while self._buckets and self._buckets[0].index < oldest:
            self._buckets.popleft()


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals since the start and the rates behind them. Guarded by the engine's lock."""

    num_steps: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_rejected: int = 0  # refused for a full queue, or out of time in it
    num_output_tokens: int = 0
    prompt_rate: RateWindow = field(default_factory=lambda: RateWindow(_RATE_WINDOW_S))
    output_rate: RateWindow = field(default_factory=lambda: RateWindow(_RATE_WINDOW_S))
    num_refused: dict[ServiceClass, int] = field(default_factory=lambda: dict.fromkeys(ServiceClass, 0))
    finish_rates: dict[ServiceClass, RateWindow] = field(
        default_factory=lambda: {each: RateWindow(_FINISH_WINDOW_S) for each in ServiceClass}
    )

    def count_step(self, batch: Batch, num_output_tokens: int, *, start_s: float, end_s: float) -> None:
        """Count a step. Prompt tokens are those it computed, so prefix hits are not among them."""
        num_prompt = 0
        for scheduled in batch.finished_sequences:
            num_left = scheduled.num_prompt_tokens - scheduled.num_computed_tokens
            if num_left > 0:
                num_prompt += min(len(scheduled.new_token_ids), num_left)
        self.num_steps += 1
        self.num_output_tokens += num_output_tokens
        self.prompt_rate.add(num_prompt, start_s=start_s, end_s=end_s)
        self.output_rate.add(num_output_tokens, start_s=start_s, end_s=end_s)

    def count_end(self, sequence: Sequence, now_s: float) -> None:
        match sequence.finish_reason:
            case FinishReason.ABORT | FinishReason.UNREAD:
                self.num_aborted += 1
            case FinishReason.ERROR:
                self.num_failed += 1
            case FinishReason.DEADLINE:
                self.num_rejected += 1
            case _:
                self.num_finished += 1
        start_s = sequence.arrival_s if sequence.started_s is None else sequence.started_s
        # One sequence that ran for minutes must not stretch the span over which the others are counted.
        self.finish_rates[sequence.service_class].add(
            1, start_s=max(start_s, now_s - _FINISH_WINDOW_S), end_s=now_s
        )

    def retry_after_s(self, service_class: ServiceClass, num_waiting: int, now_s: float) -> int:
        """Whole seconds until a quarter of a class's queue should be done, by how often they ended lately.

        A quarter, not one: all that are refused meanwhile come back at once.
        """
        rate = self.finish_rates[service_class].per_s(now_s)
        wait_s = max(1, num_waiting // 4) / rate if rate else _FINISH_WINDOW_S
        return max(1, min(_MOST_RETRY_S, math.ceil(wait_s)))
