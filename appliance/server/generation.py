"""One choice of an answer: reads its sequence's tokens, makes text of them. Knows no JSON and no sockets."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from appliance.engine.batch import FailureKind, StepFailure
from appliance.engine.sequence import FinishReason, SamplingParams
from appliance.engine.stream import FinishEvent, TokenEvent, TokenStream
from appliance.engine.waiting_queue import QueuePlace
from appliance.errors import ApplianceError, DeadlinePassed, GenerationFailed, NotReady
from appliance.observe.latency import SequenceTiming
from appliance.server.output_text import OutputText
from appliance.server.text_events import DeltaEvent, TextDelta, TextEnd, TextEvent
from appliance.text.answer_reader import PLAIN, AnswerRules
from appliance.text.constraints import CompiledGrammar


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One text to make."""

    prompt_token_ids: list[int]
    params: SamplingParams
    stop: tuple[str, ...] = ()
    rules: AnswerRules = PLAIN
    grammar: CompiledGrammar | None = None
    is_prompt_only: bool = False  # of what the engine makes nothing is shown


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

    def events(self, wake: Callable[[], None]) -> Iterator[TextEvent | None]:
        """Everything to the end. None: nothing yet; the engine's thread calls `wake` once there is more."""
        while True:
            event = self._stream.take(wake)
            if event is None:
                yield None
            elif isinstance(event, FinishEvent):
                yield from self._text.flush()
                yield self._end(event)
                return
            elif not self._text.is_stopped:
                self.timing.tokens_arrived(len(event.token_ids))
                if event.prompt_logprobs:
                    yield TextDelta(index=self.index, text="", prompt_logprobs=event.prompt_logprobs)
                began_s = self.timing.clock()
                deltas = self._deltas(event)
                self.timing.detokenize_s += self.timing.clock() - began_s
                yield from deltas

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
