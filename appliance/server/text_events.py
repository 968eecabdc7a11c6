"""What happens in one choice of an answer, in any protocol: content, thoughts, tool calls, the end."""

from dataclasses import dataclass

from appliance.engine.batch import TokenLogprobs
from appliance.engine.sequence import FinishReason
from appliance.errors import ApplianceError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDetail:
    """One output token for a client that asked for log-probabilities. `offset` in characters of the text."""

    token_id: int
    offset: int
    logprobs: TokenLogprobs


@dataclass(slots=True, kw_only=True)  # one a token: not frozen for speed
class TextDelta:
    """More content of one choice. `tokens` is empty unless log-probabilities were asked for.

    Those of the prompt's tokens, all but the first, come before any content, once. Never changed once made.
    """

    index: int
    text: str
    tokens: tuple[TokenDetail, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtDelta:
    """More of what the model thinks before it answers."""

    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """A tool call begins; `call` counts the calls of one choice."""

    index: int
    call: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """More of a call's arguments; joined they are the JSON of an object."""

    index: int
    call: int
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """A call's arguments are complete."""

    index: int
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEnd:
    """The end of one choice; `error` where it is no good end. `stop` is the stop string that ended it."""

    index: int
    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_prefix_hit_tokens: int
    num_thought_tokens: int = 0
    num_calls: int = 0  # complete ones
    stop: str | None = None
    error: ApplianceError | None = None

    @property
    def ends_in_calls(self) -> bool:
        """Whether it is now the client's turn to run tools."""
        return self.reason is FinishReason.STOP and self.num_calls > 0


DeltaEvent = TextDelta | ThoughtDelta | CallStart | CallDelta | CallEnd
TextEvent = DeltaEvent | TextEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCall:
    """One whole tool call."""

    call_id: str
    name: str
    arguments: str  # JSON of an object


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedText:
    """One whole choice. A call that was cut off is left out: its arguments are no JSON."""

    text: str
    thoughts: str
    calls: tuple[FinishedCall, ...]
    tokens: tuple[TokenDetail, ...]
    end: TextEnd
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


def finished_text(events: list[DeltaEvent], end: TextEnd) -> FinishedText:
    """Put one choice together from all deltas of a request."""
    own = [event for event in events if event.index == end.index]
    contents = [event for event in own if isinstance(event, TextDelta)]
    return FinishedText(
        text="".join(event.text for event in contents),
        thoughts="".join(event.text for event in own if isinstance(event, ThoughtDelta)),
        calls=_finished_calls(own),
        tokens=tuple(token for event in contents for token in event.tokens),
        end=end,
        prompt_logprobs=contents[0].prompt_logprobs if contents else (),
    )


def _finished_calls(events: list[DeltaEvent]) -> tuple[FinishedCall, ...]:
    starts = {event.call: event for event in events if isinstance(event, CallStart)}
    complete = [event.call for event in events if isinstance(event, CallEnd)]
    arguments = dict.fromkeys(complete, "")
    for event in events:
        if isinstance(event, CallDelta) and event.call in arguments:
            arguments[event.call] += event.arguments
    return tuple(
        FinishedCall(call_id=starts[call].call_id, name=starts[call].name, arguments=arguments[call])
        for call in complete
    )
