"""The JSON of Anthropic's messages, as clients send and read it. Knows shapes, not meanings.

Exempt from the length limit: wire schemas. A content block is one struct with every kind's fields: its `type`
says which of them count.
"""

from typing import Any, Literal

import msgspec
from msgspec import Raw

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class Block(msgspec.Struct, kw_only=True):
    """A part of a message, a system prompt or a tool's result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = msgspec.field(default_factory=Raw)  # as it came: digits of large numbers stay
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None


class AnthropicMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[Block]


class AnthropicTool(msgspec.Struct, kw_only=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None


class AnthropicToolChoice(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: str
    schema: Any = None  # a JSON schema


class OutputConfig(msgspec.Struct, kw_only=True):
    format: OutputFormat | None = None
    effort: str | None = None


class Metadata(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/messages/count_tokens`."""

    model: str
    messages: list[AnthropicMessage]
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # Known, and refused.
    mcp_servers: list[Raw] | None = None
    container: Raw = msgspec.field(default_factory=Raw)


class MessagesRequest(CountRequest, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    # Of no consequence here.
    service_tier: Raw = msgspec.field(default_factory=Raw)


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """The signature is empty: a thought that comes back is told to the model whoever wrote it."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """`input_tokens` are those that were not read from the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_start"):
    message: MessageAnswer


class BlockStart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextPiece(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingPiece(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignaturePiece(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputPiece(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


Piece = TextPiece | ThinkingPiece | SignaturePiece | InputPiece


class BlockDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: Piece


class BlockStop(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_stop"):
    index: int


class EndDelta(msgspec.Struct, frozen=True, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_delta"):
    delta: EndDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_stop"):
    """The last event."""


StreamEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
