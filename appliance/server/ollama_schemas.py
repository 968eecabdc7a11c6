"""The JSON of Ollama's API, as clients send and read it. Knows shapes, not meanings.

Exempt from the length limit: wire schemas.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from appliance.server.openai_schemas import ContentPart, TokenLogprob

KeepAlive = float | str | None
Think = bool | str | None


class Options(msgspec.Struct, kw_only=True):
    """`options`. Those for the loading of a model (num_gpu, num_thread, ...) have no effect and no field."""

    num_predict: int | None = None
    num_ctx: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # Known, and refused unless they ask for nothing.
    mirostat: int | None = None
    tfs_z: float | None = None
    typical_p: float | None = None


class ModelRequest(msgspec.Struct, kw_only=True):
    """What names a model; `name` is what older clients call it."""

    model: str | None = None
    name: str | None = None


class GenerationFields(ModelRequest, kw_only=True):
    """What both ways to generate share."""

    options: dict[str, Any] | None = None  # JSON, merged with the model's own before it is read
    stream: bool | None = None
    keep_alive: KeepAlive = None
    format: Raw = msgspec.field(default_factory=Raw)
    think: Think = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class GenerateRequest(GenerationFields, kw_only=True):
    """`POST /api/generate`."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[Raw] | None = None


class CalledFunction(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    arguments: dict[str, Any] = {}  # JSON: whatever the tool takes
    index: int | None = None


class OllamaToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    function: CalledFunction
    id: str | None = None


class Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    thinking: str | None = None
    images: list[Raw] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(GenerationFields, kw_only=True):
    """`POST /api/chat`."""

    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None  # JSON: schemas


class EmbedRequest(ModelRequest, kw_only=True):
    """`POST /api/embed`."""

    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None  # JSON, of no consequence here
    keep_alive: KeepAlive = None


class EmbeddingsRequest(ModelRequest, kw_only=True):
    """`POST /api/embeddings`, the older form."""

    prompt: str | None = None
    options: dict[str, Any] | None = None  # JSON, of no consequence here
    keep_alive: KeepAlive = None


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `POST /api/embed`; durations in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OneEmbedded(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `POST /api/embeddings`."""

    embedding: list[float]


class ShowRequest(ModelRequest, kw_only=True):
    """`POST /api/show`."""

    verbose: bool | None = None


class PullRequest(ModelRequest, kw_only=True):
    """`POST /api/pull`."""

    stream: bool | None = None
    insecure: bool | None = None


class CopyRequest(msgspec.Struct, kw_only=True):
    """`POST /api/copy`."""

    source: str
    destination: str


class CreateRequest(ModelRequest, kw_only=True):
    """`POST /api/create`."""

    base: str | None = msgspec.field(name="from", default=None)
    system: str | None = None
    template: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] | None = None  # JSON, in the names of `options`
    messages: list[Message] | None = None
    stream: bool | None = None
    # Known, and refused.
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    quantize: str | None = None
    modelfile: str | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an answer; durations in nanoseconds."""

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


class AnsweredFunction(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments` is an object, as the model wrote it: digits of large numbers stay."""

    index: int
    name: str
    arguments: Raw


class AnsweredCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    function: AnsweredFunction


class OllamaMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[AnsweredCall] | None = None


class ChatLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a stream, or the whole answer."""

    model: str
    created_at: str
    message: OllamaMessage
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    done: bool
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class GenerateLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a stream, or the whole answer."""

    model: str
    created_at: str
    response: str
    thinking: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    done: bool
    done_reason: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class Details(msgspec.Struct, frozen=True, kw_only=True):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class TagModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/tags`."""

    models: list[TagModel]


class RunningModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/ps`."""

    models: list[RunningModel]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `POST /api/show`."""

    license: str
    modelfile: str
    parameters: str
    template: str
    system: str | UnsetType = UNSET
    details: Details
    model_info: dict[str, Any]  # the file's own metadata
    capabilities: list[str]
    modified_at: str


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/version`."""

    version: str


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of `pull` and `create`."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None
