"""Writes answers as OpenAI's chat and text completions, whole or in chunks. Knows JSON; knows no engine."""

import time
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from appliance.engine.batch import TokenLogprobs
from appliance.errors import ApplianceError
from appliance.server.error_responses import error_json
from appliance.server.generation_group import TokenUsage
from appliance.server.openai_best_of import BestOf
from appliance.server.openai_logprobs import LogprobWriter
from appliance.server.openai_schemas import (
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionTokensDetails,
    Delta,
    FunctionDelta,
    PromptTokensDetails,
    ToolCallDelta,
    Usage,
)
from appliance.server.text_events import (
    CallDelta,
    CallEnd,
    CallStart,
    FinishedText,
    TextDelta,
    TextEnd,
    TextEvent,
    ThoughtDelta,
)

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerIdentity:
    """What every chunk of an answer repeats."""

    request_id: str
    model_id: str
    created: int
    wants_usage: bool  # of a stream
    service_tier: str | UnsetType = UNSET  # unset where none was asked for

    @property
    def usage_placeholder(self) -> UnsetType | None:
        """Where usage was asked for, every chunk but the last says null."""
        return None if self.wants_usage else UNSET


def new_identity(
    request_id: str, model_id: str, *, wants_usage: bool, service_tier: str | None = None
) -> AnswerIdentity:
    return AnswerIdentity(
        request_id=request_id,
        model_id=model_id,
        created=int(time.time()),
        wants_usage=wants_usage,
        service_tier=UNSET if service_tier is None else service_tier,
    )


class ChatFormat:
    """`chat.completion` and `chat.completion.chunk`. The role comes in each choice's first chunk alone."""

    def __init__(self, identity: AnswerIdentity, logprobs: LogprobWriter | None) -> None:
        self._identity = identity
        self._logprobs = logprobs
        self._begun: set[int] = set()
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def encode(self, event: TextEvent) -> bytes:
        if isinstance(event, TextDelta) and event.index in self._begun and self._logprobs is None:
            head, tail = self._frames.get(event.index) or self._frame(event.index)
            return b"%b%b%b" % (head, _encode(event.text), tail)
        opening = b""
        if event.index not in self._begun:
            self._begun.add(event.index)
            opening = self._chunk(
                ChatChunkChoice(index=event.index, delta=Delta(role="assistant", content=""))
            )
        choice = self._choice(event)
        return opening if choice is None else opening + self._chunk(choice)

    def close(self, usage: TokenUsage) -> bytes:
        last = self._event((), usage_of(usage)) if self._identity.wants_usage else b""
        return last + DONE

    def encode_error(self, error: ApplianceError) -> bytes:
        return sse_data(error_json(error))

    def encode_whole(self, choices: list[FinishedText], usage: TokenUsage) -> bytes:
        identity = self._identity
        return _encode(
            ChatCompletion(
                id=identity.request_id,
                created=identity.created,
                model=identity.model_id,
                choices=[self._whole_choice(choice) for choice in choices],
                usage=usage_of(usage),
                service_tier=identity.service_tier,
            )
        )

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands around the text in every chunk of plain content: nearly all chunks there are."""
        empty = self._chunk(ChatChunkChoice(index=index, delta=Delta(content="")))
        head, _, tail = empty.rpartition(b'"content":""')
        self._frames[index] = (head + b'"content":', tail)
        return self._frames[index]

    def _choice(self, event: TextEvent) -> ChatChunkChoice | None:
        logprobs = None
        match event:
            case TextDelta():
                logprobs = self._logprobs.chat(event.tokens) if self._logprobs else None
                delta = Delta(content=event.text)
            case ThoughtDelta():
                delta = Delta(reasoning_content=event.text)
            case CallStart():
                delta = Delta(tool_calls=(_call_start(event),))
            case CallDelta():
                function = FunctionDelta(arguments=event.arguments)
                delta = Delta(tool_calls=(ToolCallDelta(index=event.call, function=function),))
            case CallEnd():
                return None
            case TextEnd():
                return ChatChunkChoice(index=event.index, delta=Delta(), finish_reason=finish_reason(event))
        return ChatChunkChoice(index=event.index, delta=delta, logprobs=logprobs)

    def _whole_choice(self, choice: FinishedText) -> ChatChoice:
        return ChatChoice(
            index=choice.end.index,
            message=_message(choice),
            logprobs=self._logprobs.chat(choice.tokens) if self._logprobs else None,
            finish_reason=finish_reason(choice.end),
        )

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        return self._event((choice,), self._identity.usage_placeholder)

    def _event(self, choices: tuple[ChatChunkChoice, ...], usage: Usage | UnsetType | None) -> bytes:
        identity = self._identity
        chunk = ChatChunk(
            id=identity.request_id,
            created=identity.created,
            model=identity.model_id,
            choices=choices,
            usage=usage,
            service_tier=identity.service_tier,
        )
        return sse_data(_encode(chunk))


class CompletionFormat:
    """`text_completion`, the same whole and in chunks. `prompts` holds each choice's prompt as text."""

    def __init__(
        self,
        identity: AnswerIdentity,
        logprobs: LogprobWriter | None,
        prompts: tuple[str, ...],
        prompt_ids: tuple[list[int], ...],
        *,
        echoes: bool,
        best_of: BestOf,
    ) -> None:
        self._identity = identity
        self._logprobs = logprobs
        self._prompts = prompts
        self._prompt_ids = prompt_ids
        self._best_of = best_of
        self._echoes = echoes
        self._unechoed = set(range(len(prompts))) if echoes else set()

    def encode(self, event: TextEvent) -> bytes:
        opening = b""
        if event.index in self._unechoed:
            self._unechoed.discard(event.index)
            found = event.prompt_logprobs if isinstance(event, TextDelta) else ()
            choice = CompletionChoice(
                index=event.index,
                text=self._prompts[event.index],
                logprobs=self._prompt_logprobs(event.index, found),
            )
            opening = sse_data(self._body((choice,), self._identity.usage_placeholder))
            if found:
                return opening
        return opening + self._chunk(event)

    def _chunk(self, event: TextEvent) -> bytes:
        if isinstance(event, TextDelta):
            logprobs = self._choice_logprobs(event.index, event)
            choice = CompletionChoice(index=event.index, text=event.text, logprobs=logprobs)
        else:
            assert isinstance(event, TextEnd), "a text completion neither thinks nor calls"
            choice = CompletionChoice(index=event.index, text="", finish_reason=event.reason.value)
        return sse_data(self._body((choice,), self._identity.usage_placeholder))

    def close(self, usage: TokenUsage) -> bytes:
        last = sse_data(self._body((), usage_of(usage))) if self._identity.wants_usage else b""
        return last + DONE

    def encode_error(self, error: ApplianceError) -> bytes:
        return sse_data(error_json(error))

    def encode_whole(self, choices: list[FinishedText], usage: TokenUsage) -> bytes:
        if self._best_of.is_choosing:
            choices = self._best_of.chosen(choices)
        return self._body(tuple(self._whole_choice(choice) for choice in choices), usage_of(usage))

    def _whole_choice(self, choice: FinishedText) -> CompletionChoice:
        prompt = self._prompt_of(choice.end.index) if self._echoes else ""
        logprobs = self._choice_logprobs(choice.end.index, choice)
        before = self._prompt_logprobs(choice.end.index, choice.prompt_logprobs) if self._echoes else None
        return CompletionChoice(
            index=choice.end.index,
            text=prompt + choice.text,
            logprobs=_joined(before, logprobs) if before and logprobs else logprobs,
            finish_reason=choice.end.reason.value,
        )

    def _choice_logprobs(self, index: int, text: TextDelta | FinishedText) -> CompletionLogprobs | None:
        if self._logprobs is None:
            return None
        return self._logprobs.completion(text.tokens, prompt_chars=len(self._prompt_of(index)))

    def _prompt_logprobs(self, index: int, found: tuple[TokenLogprobs, ...]) -> CompletionLogprobs | None:
        """None also where the choice failed before its prompt was computed."""
        token_ids = self._prompt_ids[self._place_of(index)]
        if self._logprobs is None or len(found) != len(token_ids) - 1:
            return None
        return self._logprobs.prompt(token_ids, found)

    def _prompt_of(self, index: int) -> str:
        return self._prompts[self._place_of(index)]

    def _place_of(self, index: int) -> int:
        """The answer's choices may be fewer than those made; each prompt has as many as every other."""
        return index // self._best_of.num_kept * self._best_of.num_made

    def _body(self, choices: tuple[CompletionChoice, ...], usage: Usage | UnsetType | None) -> bytes:
        identity = self._identity
        return _encode(
            Completion(
                id=identity.request_id,
                created=identity.created,
                model=identity.model_id,
                choices=choices,
                usage=usage,
                service_tier=identity.service_tier,
            )
        )


def _joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    has_top = first.top_logprobs is not None and second.top_logprobs is not None
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=[*(first.top_logprobs or ()), *(second.top_logprobs or ())] if has_top else None,
        text_offset=first.text_offset + second.text_offset,
    )


def finish_reason(end: TextEnd) -> str:
    return "tool_calls" if end.ends_in_calls else end.reason.value


def _message(choice: FinishedText) -> AnswerMessage:
    """An answer that only calls tools has no content."""
    calls = [
        AnswerToolCall(id=call.call_id, function=AnswerFunction(name=call.name, arguments=call.arguments))
        for call in choice.calls
    ]
    return AnswerMessage(
        content=choice.text if choice.text or not calls else None,
        reasoning_content=choice.thoughts or UNSET,
        tool_calls=calls or UNSET,
    )


def _call_start(event: CallStart) -> ToolCallDelta:
    """Clients join what comes later to these empty arguments."""
    function = FunctionDelta(name=event.name, arguments="")
    return ToolCallDelta(index=event.call, id=event.call_id, type="function", function=function)


def sse_data(body: bytes) -> bytes:
    return b"data: %b\n\n" % body


def usage_of(usage: TokenUsage) -> Usage:
    return Usage(
        prompt_tokens=usage.num_prompt_tokens,
        completion_tokens=usage.num_output_tokens,
        total_tokens=usage.num_prompt_tokens + usage.num_output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.num_prefix_hit_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=usage.num_thought_tokens),
    )
