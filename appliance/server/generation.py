"""Turns engine tokens into text for one request, in any protocol. Knows no JSON and no sockets.

A request may want several texts (choices); each is one engine sequence, and all arrive as one list of
events in the order of their making.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from appliance.engine.batch import FailureKind, StepFailure
from appliance.engine.sequence import FinishReason, SamplingParams, ServiceClass
from appliance.engine.stream import FinishEvent, TokenEvent, TokenStream
from appliance.engine.waiting_queue import QueuePlace
from appliance.errors import ApplianceError, DeadlinePassed, GenerationFailed, NotReady, PromptTooLong
from appliance.model_pool import ResidentModel
from appliance.observe.latency import LatencyRecorder, SequenceTiming
from appliance.server.error_responses import unexpected_error
from appliance.server.output_text import OutputText
from appliance.server.text_events import DeltaEvent, TextDelta, TextEnd, TextEvent
from appliance.text.answer_reader import PLAIN, AnswerRules
from appliance.text.constraints import CompiledGrammar

# Beyond these, tokens stay in their stream, where they take less room and are bounded too.
_MOST_UNREAD_EVENTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One text to make."""

    prompt_token_ids: list[int]
    params: SamplingParams
    stop: tuple[str, ...] = ()
    rules: AnswerRules = PLAIN
    grammar: CompiledGrammar | None = None
    is_prompt_only: bool = False  # of what the engine makes nothing is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens over all choices; a prompt counts once however many choices it has."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_prefix_hit_tokens: int
    num_thought_tokens: int


class Generation:
    """One choice: reads its token stream, yields text as soon as it is certain."""

    def __init__(
        self,
        *,
        index: int,
        stream: TokenStream,
        text: OutputText,
        timing: SequenceTiming,
        deadline_s: float | None,
        queue_place: Callable[[], QueuePlace | None] = lambda: None,
        is_prompt_only: bool = False,
    ) -> None:
        self.index = index
        self.queue_place = queue_place
        self.timing = timing
        self._stream = stream
        self._text = text
        self._deadline_s = deadline_s
        self._is_prompt_only = is_prompt_only
        self._num_output_tokens = 0

    def cancel(self) -> None:
        self._stream.cancel()

    async def events(self) -> AsyncIterator[TextEvent]:
        async for event in self._stream:
            if isinstance(event, FinishEvent):
                for delta in self._text.flush():
                    yield delta
                yield self._end(event)
            elif not self._text.is_stopped:
                self.timing.tokens_arrived(len(event.token_ids))
                if event.prompt_logprobs:
                    yield TextDelta(index=self.index, text="", prompt_logprobs=event.prompt_logprobs)
                began_s = self.timing.clock()
                deltas = self._deltas(event)
                self.timing.detokenize_s += self.timing.clock() - began_s
                for delta in deltas:
                    yield delta

    def _deltas(self, event: TokenEvent) -> list[DeltaEvent]:
        """What each token shows; a stop string ends the sequence and drops what came after it."""
        deltas: list[DeltaEvent] = []
        if self._is_prompt_only:
            return deltas
        shown = event.visible_token_ids
        self._num_output_tokens += len(event.token_ids) - len(shown)
        for place, token_id in enumerate(shown):
            self._num_output_tokens += 1
            deltas += self._text.push(token_id, event.logprobs[place] if event.logprobs else None)
            if self._text.is_stopped:
                self._stream.cancel(FinishReason.STOP)
                break
        return deltas

    def _end(self, finish: FinishEvent) -> TextEnd:
        self.timing.finished(queue_s=finish.queue_s)
        reason = FinishReason.STOP if self._text.is_stopped else finish.reason
        if self._is_prompt_only and reason is FinishReason.STOP:
            reason = FinishReason.LENGTH
        return TextEnd(
            index=self.index,
            reason=reason,
            num_prompt_tokens=finish.num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            num_prefix_hit_tokens=finish.num_prefix_hit_tokens,
            num_thought_tokens=self._text.num_thought_tokens,
            num_calls=self._text.num_calls,
            stop=self._text.stop,
            error=_error_of(reason, finish, self._deadline_s),
        )


def _error_of(reason: FinishReason, finish: FinishEvent, deadline_s: float | None) -> ApplianceError | None:
    match reason:
        case FinishReason.ERROR:
            return GenerationFailed(f"the answer failed: {_cause_of(finish.failure)}; other answers go on")
        case FinishReason.UNREAD:
            return GenerationFailed(
                f"the answer was ended after {finish.num_output_tokens} tokens because its reader fell too "
                "far behind; read the stream as it comes, or ask for fewer choices or log-probabilities"
            )
        case FinishReason.DEADLINE if finish.num_output_tokens == 0:
            return DeadlinePassed(waited_s=finish.queue_s, deadline_s=deadline_s or finish.queue_s)
        case FinishReason.ABORT:
            return NotReady("the answer was ended because the appliance is stopping; ask again later")
        case _:
            return None


def _cause_of(failure: StepFailure | None) -> str:
    """A step that raised may tell of files and addresses: that stays in the log."""
    if failure is None or failure.kind is FailureKind.RUNNER:
        return "a step of the model failed, which the log shows"
    return failure.message


class GenerationGroup:
    """All choices of one request, started together; owned by the event loop."""

    def __init__(
        self, generations: Sequence[Generation], *, num_per_prompt: int, service_class: ServiceClass
    ) -> None:
        self.service_class = service_class
        self._generations = tuple(generations)
        self._num_per_prompt = num_per_prompt
        self._ends: list[TextEnd] = []
        self._ready: list[TextEvent] = []
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._tasks = [asyncio.create_task(self._run(generation)) for generation in self._generations]

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

    async def read(self) -> list[TextEvent]:
        """Wait for events and return all that are ready; none after a `nudge`."""
        await self._wake.wait()
        self._wake.clear()
        ready, self._ready = self._ready, []
        self._has_room.set()
        return ready

    def nudge(self) -> None:
        """Let a waiting `read` return."""
        self._wake.set()

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
            for task in self._tasks:
                task.cancel()

    async def _run(self, generation: Generation) -> None:
        try:
            async for event in generation.events():
                self._add(event)
                while len(self._ready) >= _MOST_UNREAD_EVENTS:
                    self._has_room.clear()
                    await self._has_room.wait()
        except Exception as error:  # the outermost loop of one choice: the request must learn of it
            generation.cancel()
            self._add(_failed_end(generation.index, unexpected_error(error)))

    def _add(self, event: TextEvent) -> None:
        if isinstance(event, TextEnd):
            self._ends.append(event)
        self._ready.append(event)
        self._wake.set()


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
