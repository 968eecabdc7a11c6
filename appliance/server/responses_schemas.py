"""The JSON of OpenAI's responses, as clients send and read it. Knows shapes, not meanings.

Exempt from the length limit: wire schemas. Items and events that we write are plain JSON objects: their
shapes differ by type, and what a client sent is shown again as it came.
"""

from typing import Any, Literal

import msgspec
from msgspec import Raw

from appliance.server.openai_schemas import FunctionDefinition

Json = dict[str, Any]  # Any: JSON


class InputPart(msgspec.Struct, omit_defaults=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One item of a conversation: a message, a call, a call's output, a thought, or a reference to one."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    status: str | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    schema_: Any = msgspec.field(default=None, name="schema")  # a JSON schema
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: Raw = msgspec.field(default_factory=Raw)


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseTool(FunctionDefinition, kw_only=True):
    """A function; its fields stand beside `type`."""

    name: str = ""
    type: str = "function"


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/responses`."""

    input: str | list[InputItem] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Any = None  # a word or an object
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    metadata: Json | None = None
    # Extensions, as in chats.
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    # Known, and refused unless they ask for nothing.
    background: bool | None = None
    conversation: Raw = msgspec.field(default_factory=Raw)
    prompt: Raw = msgspec.field(default_factory=Raw)
    truncation: str | None = None
    service_tier: str | None = None
    user: Raw = msgspec.field(default_factory=Raw)
    prompt_cache_key: Raw = msgspec.field(default_factory=Raw)
    # Of no consequence here.
    safety_identifier: Raw = msgspec.field(default_factory=Raw)
    max_tool_calls: Raw = msgspec.field(default_factory=Raw)
    stream_options: Raw = msgspec.field(default_factory=Raw)
    context_management: Raw = msgspec.field(default_factory=Raw)
    prompt_cache_retention: Raw = msgspec.field(default_factory=Raw)


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: str


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """A response, whole or as far as it has come."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[Json] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: Json
    service_tier: str = "default"
    store: bool
    temperature: float
    text: Json
    tool_choice: Any  # a word or an object
    tools: list[Json]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    metadata: Json


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/responses/{id}/input_items`."""

    object: Literal["list"] = "list"
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool
