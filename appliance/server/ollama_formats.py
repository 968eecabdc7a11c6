"""Writes answers as Ollama's lines of JSON, streamed or whole. Knows JSON; knows no engine."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, UnsetType

from appliance.errors import ApplianceError
from appliance.server.error_responses import error_json
from appliance.server.generation_group import TokenUsage
from appliance.server.ollama_schemas import (
    AnsweredCall,
    AnsweredFunction,
    ChatLine,
    Counts,
    GenerateLine,
    OllamaMessage,
)
from appliance.server.openai_logprobs import LogprobWriter
from appliance.server.openai_schemas import TokenLogprob
from appliance.server.stream_writer import StreamKind
from appliance.server.text_events import (
    CallDelta,
    CallEnd,
    CallStart,
    FinishedCall,
    FinishedText,
    TextDelta,
    TextEnd,
    TextEvent,
    ThoughtDelta,
    TokenDetail,
)

CONTENT_TYPE = b"application/x-ndjson"
_encode = msgspec.json.Encoder().encode
# Given the answer's text: the token ids that a later request may go on from.
ContextOf = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds. `first_token_s` counts from the request's last byte, loading and queue included."""

    total_s: float
    load_s: float
    first_token_s: float | None


class OllamaFormat:
    """What both answers share: the order of lines, the counts at the end."""

    def __init__(self, model: str, times: Callable[[], Times], logprobs: LogprobWriter | None) -> None:
        self._model = model
        self._times = times
        self._logprobs = logprobs
        self._reason = "stop"

    @property
    def stream_kind(self) -> StreamKind:
        """An empty piece of text keeps a stream open: lines of JSON know no comments."""
        return StreamKind(content_type=CONTENT_TYPE, ping=self._delta(_Said()))

    def encode(self, event: TextEvent) -> bytes:
        match event:
            case TextDelta(text=text, tokens=tokens):
                return self._delta(_Said(text=text, tokens=tokens))
            case ThoughtDelta(text=text):
                return self._delta(_Said(thoughts=text))
            case TextEnd(reason=reason):
                self._reason = reason.value
        return b""

    def close(self, usage: TokenUsage) -> bytes:
        return self._last(_Said(), usage) + b"\n"

    def encode_error(self, error: ApplianceError) -> bytes:
        return error_json(error, "/api") + b"\n"

    def encode_whole(self, choices: list[FinishedText], usage: TokenUsage) -> bytes:
        (choice,) = choices
        self._reason = choice.end.reason.value
        said = _Said(text=choice.text, thoughts=choice.thoughts, tokens=choice.tokens, calls=choice.calls)
        return self._last(said, usage)

    def _delta(self, said: "_Said") -> bytes:
        raise NotImplementedError

    def _last(self, said: "_Said", usage: TokenUsage) -> bytes:
        raise NotImplementedError

    def _logprob_list(self, said: "_Said") -> list[TokenLogprob] | UnsetType:
        return self._logprobs.chat(said.tokens).content if self._logprobs and said.tokens else UNSET

    def _counts(self, usage: TokenUsage) -> Counts:
        times = self._times()
        before_s = times.total_s if times.first_token_s is None else times.first_token_s
        return Counts(
            total_duration=nanoseconds(times.total_s),
            load_duration=nanoseconds(times.load_s),
            prompt_eval_count=usage.num_prompt_tokens,
            prompt_eval_duration=nanoseconds(before_s - times.load_s),
            eval_count=usage.num_output_tokens,
            eval_duration=nanoseconds(times.total_s - before_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What one line says."""

    text: str = ""
    thoughts: str = ""
    tokens: tuple[TokenDetail, ...] = ()
    calls: tuple[FinishedCall, ...] = ()


class OllamaChatFormat(OllamaFormat):
    """The lines of `/api/chat`. A call comes in one piece."""

    def __init__(self, model: str, times: Callable[[], Times], logprobs: LogprobWriter | None) -> None:
        super().__init__(model, times, logprobs)
        self._open_call: CallStart | None = None
        self._arguments: list[str] = []
        self._num_calls = 0

    def encode(self, event: TextEvent) -> bytes:
        match event:
            case CallStart():
                self._open_call, self._arguments = event, []
                return b""
            case CallDelta(arguments=arguments):
                self._arguments.append(arguments)
                return b""
            case CallEnd():
                assert self._open_call is not None
                call = FinishedCall(
                    call_id=self._open_call.call_id,
                    name=self._open_call.name,
                    arguments="".join(self._arguments),
                )
                return self._delta(_Said(calls=(call,)))
        return super().encode(event)

    def _delta(self, said: _Said) -> bytes:
        line = ChatLine(
            model=self._model,
            created_at=now_text(),
            message=self._message(said),
            logprobs=self._logprob_list(said),
            done=False,
        )
        return _encode(line) + b"\n"

    def _last(self, said: _Said, usage: TokenUsage) -> bytes:
        return _encode(
            ChatLine(
                model=self._model,
                created_at=now_text(),
                message=self._message(said),
                logprobs=self._logprob_list(said),
                done=True,
                done_reason=self._reason,
                **msgspec.structs.asdict(self._counts(usage)),
            )
        )

    def _message(self, said: _Said) -> OllamaMessage:
        calls = [self._call(call) for call in said.calls]
        return OllamaMessage(
            role="assistant", content=said.text, thinking=said.thoughts or None, tool_calls=calls or None
        )

    def _call(self, call: FinishedCall) -> AnsweredCall:
        arguments = msgspec.Raw(call.arguments.encode() or b"{}")
        function = AnsweredFunction(index=self._num_calls, name=call.name, arguments=arguments)
        self._num_calls += 1
        return AnsweredCall(id=call.call_id, function=function)


class OllamaGenerateFormat(OllamaFormat):
    """The lines of `/api/generate`; the last one holds the tokens to go on from."""

    def __init__(
        self,
        model: str,
        times: Callable[[], Times],
        logprobs: LogprobWriter | None,
        context_of: ContextOf | None,
    ) -> None:
        super().__init__(model, times, logprobs)
        self._context_of = context_of
        self._texts: list[str] = []

    def _delta(self, said: _Said) -> bytes:
        self._texts.append(said.text)
        line = GenerateLine(
            model=self._model,
            created_at=now_text(),
            response=said.text,
            thinking=said.thoughts or UNSET,
            logprobs=self._logprob_list(said),
            done=False,
        )
        return _encode(line) + b"\n"

    def _last(self, said: _Said, usage: TokenUsage) -> bytes:
        whole = "".join(self._texts) + said.text
        return _encode(
            GenerateLine(
                model=self._model,
                created_at=now_text(),
                response=said.text,
                thinking=said.thoughts or UNSET,
                logprobs=self._logprob_list(said),
                done=True,
                done_reason=self._reason,
                context=self._context_of(whole) if self._context_of else UNSET,
                **msgspec.structs.asdict(self._counts(usage)),
            )
        )


def chat_note(model: str, reason: str) -> bytes:
    """The answer to an empty chat: the model was loaded, or unloaded."""
    message = OllamaMessage(role="assistant", content="")
    line = ChatLine(model=model, created_at=now_text(), message=message, done=True, done_reason=reason)
    return _encode(line)


def generate_note(model: str, reason: str) -> bytes:
    """The answer to an empty prompt: the model was loaded, or unloaded."""
    return _encode(
        GenerateLine(model=model, created_at=now_text(), response="", done=True, done_reason=reason)
    )


def now_text() -> str:
    return time_text(datetime.now(UTC))


def time_text(moment: datetime) -> str:
    """RFC 3339 with a Z, which every client's parser takes."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def nanoseconds(seconds: float) -> int:
    return max(int(seconds * 1e9), 0)
