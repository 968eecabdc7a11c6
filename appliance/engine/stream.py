"""Carries one sequence's tokens from the engine thread to its consumer. Knows no text and no scheduler.

The consumer is a coroutine (`async for`) or a plain thread (`for`), one at a time. It may be slow: what
gathers meanwhile is a few integers per token, handed over as one event. What may gather is bounded.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from appliance.engine.batch import StepFailure, TokenLogprobs
from appliance.engine.sequence import FinishReason, SequenceId

# A wait without a limit cannot be interrupted by Ctrl-C on Windows.
_INTERRUPTIBLE_S = 0.5
# Of one stream: tokens, and the log-probabilities with them; 110 bytes each at most, so under 2 MiB.
MOST_UNREAD = 16_384


@dataclass(slots=True, kw_only=True)  # one a sequence and step: not frozen for speed
class TokenEvent:
    """New output tokens, in order; `logprobs` one per token where asked for.

    With `ends_with_stop_token` the last one is a stop token: it counts, but its text is not shown.
    Never changed once made.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    hidden_state: tuple[float, ...] | None = None  # of the last known token when the last one was chosen
    ends_with_stop_token: bool = False
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # with the first token: of the prompt's, but the first

    @property
    def num_items(self) -> int:
        """What of it takes memory: tokens and likely alternatives to them."""
        if self.logprobs is None:
            return len(self.token_ids)
        return len(self.token_ids) + sum(len(item.top) for item in self.logprobs)

    @property
    def visible_token_ids(self) -> tuple[int, ...]:
        return self.token_ids[:-1] if self.ends_with_stop_token else self.token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishEvent:
    """The last event. `queue_s` is the time from arrival to the first step, or to the end without one."""

    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_prefix_hit_tokens: int
    queue_s: float
    failure: StepFailure | None = None


class TokenStream:
    """Token events, then one finish event, then the end. As a context manager it cancels on the way out."""

    def __init__(
        self,
        sequence_id: SequenceId,
        abort: Callable[[SequenceId, FinishReason], None],
        *,
        most_unread: int = MOST_UNREAD,
    ) -> None:
        self.sequence_id = sequence_id
        self._abort = abort
        self._lock = threading.Lock()
        self._most_unread = most_unread
        self._num_unread = 0
        self._tokens: list[TokenEvent] = []
        self._finish: FinishEvent | None = None
        self._is_exhausted = False
        self._wake: Callable[[], None] | None = None  # set while the consumer waits

    def push(self, tokens: TokenEvent | None, finish: FinishEvent | None = None) -> bool:
        """Engine side: add what one step gave, and wake the consumer at most once.

        False if the consumer is too far behind to be given more: its sequence should end.
        """
        with self._lock:
            if tokens is not None:
                self._tokens.append(tokens)
                self._num_unread += tokens.num_items
            self._finish = finish or self._finish
            wake, self._wake = self._wake, None
            has_room = self._num_unread <= self._most_unread
        if wake is not None:
            wake()
        return has_room

    def cancel(self, reason: FinishReason = FinishReason.ABORT) -> None:
        """Consumer side, any thread: end the sequence; harmless once it ended. A finish event still comes.

        `reason` is STOP where the consumer saw what it was looking for.
        """
        self._abort(self.sequence_id, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenEvent | FinishEvent:
        if self._is_exhausted:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        while True:
            arrival: asyncio.Future[None] = loop.create_future()
            event = self.take(partial(call_on_loop, loop, partial(_resolve, arrival)))
            if event is not None:
                return event
            await arrival

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TokenEvent | FinishEvent:
        if self._is_exhausted:
            raise StopIteration
        while True:
            arrival = threading.Event()
            event = self.take(arrival.set)
            if event is not None:
                return event
            while not arrival.wait(_INTERRUPTIBLE_S):
                pass

    def take(self, wake: Callable[[], None]) -> TokenEvent | FinishEvent | None:
        """Return what has gathered, else None, and have `wake` called once, by the thread that pushes next.

        For a consumer that does not wait here; after the finish event nothing is left to take.
        """
        with self._lock:
            if self._tokens:
                tokens, self._tokens, self._num_unread = self._tokens, [], 0
                return _merged(tokens)
            if self._finish is None:
                self._wake = wake
            self._is_exhausted = self._finish is not None
            return self._finish


def _merged(events: list[TokenEvent]) -> TokenEvent:
    if len(events) == 1:
        return events[0]
    has_logprobs = events[0].logprobs is not None
    return TokenEvent(
        token_ids=tuple(token_id for event in events for token_id in event.token_ids),
        logprobs=tuple(item for event in events for item in event.logprobs or ()) if has_logprobs else None,
        hidden_state=events[-1].hidden_state,
        ends_with_stop_token=events[-1].ends_with_stop_token,
        prompt_logprobs=events[0].prompt_logprobs,
    )


def call_on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have the loop make a call, from any thread. A closed loop has no consumer left to wake."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _resolve(arrival: "asyncio.Future[None]") -> None:
    if not arrival.done():  # done: the consumer was cancelled while it waited
        arrival.set_result(None)
