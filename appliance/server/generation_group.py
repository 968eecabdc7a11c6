"""All choices of one request: started together, told as one list of events in the order of their making.

Each is one engine sequence. Knows no JSON and no sockets.
"""

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from appliance.engine.sequence import FinishReason, ServiceClass
from appliance.engine.stream import TokenStream, call_on_loop
from appliance.engine.waiting_queue import QueuePlace
from appliance.errors import ApplianceError, PromptTooLong
from appliance.model_pool import ResidentModel
from appliance.observe.latency import LatencyRecorder, SequenceTiming
from appliance.server.error_responses import unexpected_error
from appliance.server.generation import Generation, GenerationRequest
from appliance.server.output_text import OutputText
from appliance.server.text_events import TextEnd, TextEvent

# Beyond these, tokens stay in their stream, where they take less room and are bounded too.
_MOST_UNREAD_EVENTS = 256
# Whether these events are dealt with.
Passes = Callable[[Sequence[TextEvent]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens over all choices; a prompt counts once however many choices it has."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_prefix_hit_tokens: int
    num_thought_tokens: int


def _passes_none(_: Sequence[TextEvent]) -> bool:
    return False


class GenerationGroup:
    """All choices of one request, started together; owned by the event loop.

    What the engine makes is taken in by a call on the loop: a task for each choice would cost more than the
    text itself.
    """

    def __init__(
        self, generations: Sequence[Generation], *, num_per_prompt: int, service_class: ServiceClass
    ) -> None:
        self.service_class = service_class
        self._generations = tuple(generations)
        self._num_per_prompt = num_per_prompt
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # the request's: calls on the loop have the engine's
        self._ends: list[TextEnd] = []
        self._ready: list[TextEvent] = []
        self._held: list[int] = []  # choices that have more and wait for room
        self._is_nudged = False
        self._arrival: asyncio.Future[None] | None = None  # a reader waits for it
        self._passes: Passes = _passes_none
        self._events = [one.events(self._wake_for(one.index)) for one in self._generations]
        for index in range(self.size):
            self._take_in(index)

    @property
    def size(self) -> int:
        return len(self._generations)

    @property
    def is_done(self) -> bool:
        """Whether every choice ended and every event was read."""
        return len(self._ends) == self.size and not self._ready

    @property
    def timing(self) -> SequenceTiming:
        """The first choice's clock."""
        return self._generations[0].timing

    @property
    def ttft_s(self) -> float | None:
        return self.timing.ttft_s

    @property
    def tpot_s(self) -> float | None:
        return self.timing.tpot_s

    @property
    def queue_place(self) -> QueuePlace | None:
        """Where the request stands while it waits: its first choice, which the others follow."""
        return self._generations[0].queue_place()

    @property
    def ends(self) -> tuple[TextEnd, ...]:
        return tuple(self._ends)

    @property
    def usage(self) -> TokenUsage:
        firsts = [end for end in self._ends if end.index % self._num_per_prompt == 0]
        return TokenUsage(
            num_prompt_tokens=sum(end.num_prompt_tokens for end in firsts),
            num_output_tokens=sum(end.num_output_tokens for end in self._ends),
            num_prefix_hit_tokens=sum(end.num_prefix_hit_tokens for end in firsts),
            num_thought_tokens=sum(end.num_thought_tokens for end in self._ends),
        )

    async def read(self, passes: Passes = _passes_none) -> list[TextEvent]:
        """Wait for events and return all that are ready; none after a `nudge`.

        While it waits, what comes is offered to `passes`, on the loop, and not returned where that took it:
        to wake a task for each token costs more than to write it.
        """
        if not self._ready and not self._is_nudged:
            self._arrival, self._passes = self._loop.create_future(), passes
            try:
                await self._arrival
            finally:
                self._arrival = None
        self._is_nudged = False
        ready, self._ready = self._ready, []
        if self._held:
            held, self._held = self._held, []
            for index in held:
                self._take_in(index)
        return ready

    def nudge(self) -> None:
        """Let a waiting `read` return."""
        self._is_nudged = True
        self._wake_reader()

    def sent(self, events: Sequence[TextEvent]) -> None:
        """Note that these were handed to the socket (or, for an answer sent whole, could have been)."""
        for event in events:
            if not isinstance(event, TextEnd):
                self._generations[event.index].timing.first_token_out()

    def cancel(self) -> None:
        """End every sequence; their end events still come."""
        for generation in self._generations:
            generation.cancel()

    async def settle(self, limit_s: float) -> None:
        """After `cancel`: let every choice tell what it came to, which is the step in flight away."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not self.is_done:
                    await self.read()

    def close(self) -> None:
        """End what still runs; nothing more is read."""
        if len(self._ends) < self.size:
            self.cancel()
        self._events = []

    def _wake_for(self, index: int) -> Callable[[], None]:
        """What the engine's thread is to call once a choice has more."""
        return partial(call_on_loop, self._loop, partial(self._take_in, index))

    def _take_in(self, index: int) -> None:
        """Make one choice's events ready, as long as there is room, and tell the reader."""
        if not self._events:
            return
        try:
            has_more = True
            while has_more:
                has_more = self._fill_from(index)
                if not self._has_passed():
                    if has_more:
                        self._held.append(index)
                    break
        except Exception as error:  # the outermost frame of one choice: the request must learn of it
            self._generations[index].cancel()
            self._add(_failed_end(index, self._context.run(unexpected_error, error)))
        if self._ready:
            self._wake_reader()

    def _fill_from(self, index: int) -> bool:
        """Whether there was no room for all."""
        while len(self._ready) < _MOST_UNREAD_EVENTS:
            event = next(self._events[index], None)
            if event is None:
                return False
            self._add(event)
        return True

    def _has_passed(self) -> bool:
        """Offer a waiting reader what is ready."""
        is_awaited = self._arrival is not None and not self._arrival.done()
        if not (self._ready and is_awaited and self._passes(self._ready)):
            return False
        self._ready = []
        return True

    def _add(self, event: TextEvent) -> None:
        if isinstance(event, TextEnd):
            self._ends.append(event)
        self._ready.append(event)

    def _wake_reader(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


def _failed_end(index: int, error: ApplianceError) -> TextEnd:
    return TextEnd(
        index=index,
        reason=FinishReason.ERROR,
        num_prompt_tokens=0,
        num_output_tokens=0,
        num_prefix_hit_tokens=0,
        error=error,
    )


def start_generations(
    model: ResidentModel,
    requests: Sequence[GenerationRequest],
    *,
    num_per_prompt: int,
    latency: LatencyRecorder,
    received_s: float,
    deadline_s: float | None,
    prompt_field: str,
    cache_salt: str = "",
    service_class: ServiceClass = ServiceClass.SILVER,
    end_within_s: float | None = None,
) -> GenerationGroup:
    """Submit every request to the model's engine, or none of them.

    Each `num_per_prompt` of them in a row have one prompt, which is computed once. Prompts share what was
    computed before only under the same `cache_salt`. `received_s` is when the request's last byte came in,
    on the recorder's clock. `prompt_field` is what the protocol calls the prompt. Raises what
    `Engine.submit` raises: InvalidRequest, QueueFull, NotReady.
    """
    streams: list[TokenStream] = []
    # Before, not after: the engine may have begun by the time that this thread goes on.
    submitted_s = latency.clock()
    try:
        for first in range(0, len(requests), num_per_prompt):
            choices = requests[first : first + num_per_prompt]
            streams += model.engine.submit_choices(
                choices[0].prompt_token_ids,
                [choice.params for choice in choices],
                constraints=[choice.grammar.start() if choice.grammar else None for choice in choices],
                deadline_s=deadline_s,
                cache_salt=cache_salt,
                service_class=service_class,
                end_within_s=end_within_s,
            )
            model.note_prompt(choices[0].prompt_token_ids)
    except ApplianceError as error:
        for stream in streams:
            stream.cancel()
        if isinstance(error, PromptTooLong) or error.param == "messages":
            error.param = prompt_field
        raise
    gaps = latency.requests.of_model(model.model_id).gap
    timing_of = partial(SequenceTiming, latency, received_s=received_s, submitted_s=submitted_s, gaps=gaps)
    generations = [
        _generation(model, index, request, stream, timing_of(), deadline_s)
        for index, (request, stream) in enumerate(zip(requests, streams, strict=True))
    ]
    return GenerationGroup(generations, num_per_prompt=num_per_prompt, service_class=service_class)


def _generation(
    model: ResidentModel,
    index: int,
    request: GenerationRequest,
    stream: TokenStream,
    timing: SequenceTiming,
    deadline_s: float | None,
) -> Generation:
    return Generation(
        index=index,
        stream=stream,
        text=OutputText(model.tokenizer, request.stop, index=index, rules=request.rules),
        timing=timing,
        deadline_s=deadline_s,
        queue_place=partial(model.engine.queue_place, stream.sequence_id),
        is_prompt_only=request.is_prompt_only,
    )
