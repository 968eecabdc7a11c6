"""Writes answers as Anthropic's messages, whole or as its events. Knows JSON; knows no engine."""

from dataclasses import dataclass

import msgspec

from appliance.engine.sequence import FinishReason
from appliance.errors import ApplianceError
from appliance.server.anthropic_schemas import (
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    EndDelta,
    InputPiece,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Piece,
    SignaturePiece,
    StopReason,
    StreamEvent,
    TextBlock,
    TextPiece,
    ThinkingBlock,
    ThinkingPiece,
    ToolUseBlock,
)
from appliance.server.error_responses import error_json
from appliance.server.generation_group import TokenUsage
from appliance.server.stream_writer import StreamKind
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

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
STREAM = StreamKind(ping=PING)
_PATH = "/v1/messages"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageIdentity:
    """What is known of an answer before it begins."""

    message_id: str
    model: str
    num_prompt_tokens: int
    max_tokens: int


class AnthropicFormat:
    """One message. Blocks follow each other in a stream: a new kind of text closes the one before."""

    def __init__(self, identity: MessageIdentity) -> None:
        self._identity = identity
        self._has_begun = False
        self._num_blocks = 0
        self._open: type[AnswerBlock] | None = None
        self._end: TextEnd | None = None

    def encode(self, event: TextEvent) -> bytes:
        opening = self._begin()
        match event:
            case TextDelta(text=text):
                return opening + (self._piece(TextBlock(text=""), TextPiece(text=text)) if text else b"")
            case ThoughtDelta(text=text):
                return opening + self._piece(ThinkingBlock(thinking=""), ThinkingPiece(thinking=text))
            case CallStart(call_id=call_id, name=name):
                block = ToolUseBlock(id=call_id, name=name, input=msgspec.Raw(b"{}"))
                return opening + self._close_block() + self._open_block(block)
            case CallDelta(arguments=arguments):
                return opening + self._delta(InputPiece(partial_json=arguments))
            case CallEnd():
                return opening + self._close_block()
            case TextEnd():
                self._end = event
        return opening

    def close(self, usage: TokenUsage) -> bytes:
        assert self._end is not None
        # Clients look into the first block of every message.
        rest = b"" if self._num_blocks else self._open_block(TextBlock(text=""))
        rest += self._close_block()
        reason, stop = self._reason(self._end)
        end = MessageDelta(delta=EndDelta(stop_reason=reason, stop_sequence=stop), usage=_usage(usage))
        return self._begin() + rest + _event(end) + _event(MessageStop())

    def encode_error(self, error: ApplianceError) -> bytes:
        return b"event: error\ndata: %b\n\n" % error_json(error, _PATH)

    def encode_whole(self, choices: list[FinishedText], usage: TokenUsage) -> bytes:
        (choice,) = choices
        reason, stop = self._reason(choice.end)
        return _encode(self._message(_blocks(choice), _usage(usage), reason, stop))

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        usage = MessageUsage(input_tokens=self._identity.num_prompt_tokens, output_tokens=0)
        return _event(MessageStart(message=self._message([], usage, None, None))) + PING

    def _message(
        self,
        content: list[AnswerBlock],
        usage: MessageUsage,
        reason: StopReason | None,
        stop: str | None,
    ) -> MessageAnswer:
        return MessageAnswer(
            id=self._identity.message_id,
            model=self._identity.model,
            content=content,
            stop_reason=reason,
            stop_sequence=stop,
            usage=usage,
        )

    def _piece(self, block: AnswerBlock, piece: Piece) -> bytes:
        opening = b""
        if self._open is not type(block):
            opening = self._close_block() + self._open_block(block)
        return opening + self._delta(piece)

    def _open_block(self, block: AnswerBlock) -> bytes:
        self._open = type(block)
        self._num_blocks += 1
        return _event(BlockStart(index=self._num_blocks - 1, content_block=block))

    def _delta(self, piece: Piece) -> bytes:
        return _event(BlockDelta(index=self._num_blocks - 1, delta=piece))

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        sealing = self._delta(SignaturePiece(signature="")) if self._open is ThinkingBlock else b""
        self._open = None
        return sealing + _event(BlockStop(index=self._num_blocks - 1))

    def _reason(self, end: TextEnd) -> tuple[StopReason, str | None]:
        if end.reason is FinishReason.LENGTH:
            is_full = end.num_output_tokens < self._identity.max_tokens
            return ("model_context_window_exceeded" if is_full else "max_tokens"), None
        if end.ends_in_calls:
            return "tool_use", None
        return ("end_turn", None) if end.stop is None else ("stop_sequence", end.stop)


def _blocks(choice: FinishedText) -> list[AnswerBlock]:
    blocks: list[AnswerBlock] = []
    if choice.thoughts:
        blocks.append(ThinkingBlock(thinking=choice.thoughts))
    if choice.text or not (choice.thoughts or choice.calls):
        blocks.append(TextBlock(text=choice.text))
    for call in choice.calls:
        arguments = msgspec.Raw(call.arguments.encode() or b"{}")
        blocks.append(ToolUseBlock(id=call.call_id, name=call.name, input=arguments))
    return blocks


def _usage(usage: TokenUsage) -> MessageUsage:
    return MessageUsage(
        input_tokens=usage.num_prompt_tokens - usage.num_prefix_hit_tokens,
        output_tokens=usage.num_output_tokens,
        cache_read_input_tokens=usage.num_prefix_hit_tokens,
    )


def _event(event: StreamEvent) -> bytes:
    name = event.__struct_config__.tag
    return b"event: %b\ndata: %b\n\n" % (str(name).encode(), _encode(event))
