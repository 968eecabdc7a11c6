"""The JSON of OpenAI's chat and text completions, as clients send and read it. Knows shapes, not meanings.

Exempt from the length limit: wire schemas. A field that is only listed here so that it can be refused by
name, or passed over in silence, is typed `Raw`: its content is never decoded.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    function: FunctionCall
    id: str | None = None
    type: str = "function"


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | UnsetType | None = UNSET
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None  # of an earlier answer; some templates show it again
    refusal: Raw = msgspec.field(default_factory=Raw)
    # Known, and refused unless null: without them a conversation would lose a turn.
    function_call: Raw = msgspec.field(default_factory=Raw)
    audio: Raw = msgspec.field(default_factory=Raw)


class JsonSchemaFormat(msgspec.Struct):
    # msgspec calls this one "schema" on the wire; a struct of ours has a method of that name.
    schema_: Any = msgspec.field(default=None, name="schema")  # a JSON schema
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchemaFormat | None = None
    # What some servers take beside OpenAI's.
    schema_: Any = msgspec.field(default=None, name="schema")  # a JSON schema
    grammar: str | None = None
    pattern: str | None = None


class StructuredOutputs(msgspec.Struct):
    """What an answer must look like; one of them."""

    json: Any = None  # a JSON schema, or its text
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class FunctionDefinition(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None


class ToolDefinition(msgspec.Struct):
    type: str = "function"
    function: FunctionDefinition | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What chat and text completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    # Extensions that local servers share.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    deadline: float | None = None  # seconds in which the answer must end with what there is
    service_tier: str | None = None
    # What an answer must look like, under the names that clients of other servers use.
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None  # a JSON schema, or its text
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    grammar: str | None = None
    # Of no consequence here.
    user: Raw = msgspec.field(default_factory=Raw)
    metadata: Raw = msgspec.field(default_factory=Raw)
    store: Raw = msgspec.field(default_factory=Raw)
    safety_identifier: Raw = msgspec.field(default_factory=Raw)
    prompt_cache_key: Raw = msgspec.field(default_factory=Raw)


class ChatRequest(SamplingFields, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # the template's own: any JSON
    tools: list[ToolDefinition] | None = None
    tool_choice: Any = None  # a word or an object
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    functions: list[Raw] | None = None
    function_call: Any = None  # as tool_choice
    modalities: list[str] | None = None
    audio: Raw = msgspec.field(default_factory=Raw)
    web_search_options: Raw = msgspec.field(default_factory=Raw)
    reasoning_effort: str | None = None
    verbosity: Raw = msgspec.field(default_factory=Raw)
    prediction: Raw = msgspec.field(default_factory=Raw)


class CompletionRequest(SamplingFields, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class AnswerFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: AnswerFunction


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """`usage` is absent unless asked for; then null in every chunk but the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    service_tier: str | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, and each chunk of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    service_tier: str | UnsetType = UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "local"
    max_model_len: int | None  # tokens; None until the model was loaded once
    recommended: dict[str, float] = {}  # fields of a request, as the model's makers advise to set them


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorBody
