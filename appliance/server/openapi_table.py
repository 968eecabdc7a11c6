"""Every route that clients may use: what it takes and gives, in one line each. Data; knows no handlers."""

from dataclasses import dataclass

import msgspec

from appliance.server import anthropic_schemas as anthropic
from appliance.server import embedding_schemas as embeddings
from appliance.server import ollama_schemas as ollama
from appliance.server import openai_schemas as openai
from appliance.server import operations
from appliance.server import responses_schemas as responses
from appliance.server.error_shapes import AnthropicError, OllamaError
from appliance.server.schemas import FinishedRequests, LogEntries, SystemSnapshot
from appliance.server.system import Health
from appliance.server.system_models import ModelStatuses, NamedModel

Schema = type[msgspec.Struct]
JSON, SSE, NDJSON, TEXT = "application/json", "text/event-stream", "application/x-ndjson", "text/plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`stream` is what comes instead of the answer where the request asks for it, or does not forbid it."""

    method: str
    path: str
    group: str
    summary: str
    request: Schema | None = None
    answer: Schema | None = None
    stream: str | None = None
    needs_key: bool = True
    media_type: str = JSON


ERRORS: dict[str, Schema] = {
    "OpenAI": openai.ErrorResponse,
    "Ollama": OllamaError,
    "Anthropic": AnthropicError,
}


def _openai(method: str, path: str, summary: str, **rest: Schema | str | None) -> Operation:
    return Operation(method=method, path=path, group="OpenAI", summary=summary, **rest)  # type: ignore[arg-type]


def _ollama(method: str, path: str, summary: str, **rest: Schema | str | None) -> Operation:
    return Operation(method=method, path=path, group="Ollama", summary=summary, **rest)  # type: ignore[arg-type]


OPERATIONS = (
    _openai("GET", "/v1/models", "The models that answer", answer=openai.ModelList),
    _openai("GET", "/v1/models/{model_id}", "One of them", answer=openai.ModelCard),
    _openai(
        "POST",
        "/v1/chat/completions",
        "Answer a chat",
        request=openai.ChatRequest,
        answer=openai.ChatCompletion,
        stream=SSE,
    ),
    _openai(
        "POST",
        "/v1/completions",
        "Go on from a text or token ids",
        request=openai.CompletionRequest,
        answer=openai.Completion,
        stream=SSE,
    ),
    _openai(
        "POST",
        "/v1/responses",
        "Answer, and keep the answer so that another can go on from it",
        request=responses.ResponsesRequest,
        answer=responses.ResponseBody,
        stream=SSE,
    ),
    _openai("GET", "/v1/responses/{response_id}", "A kept answer", answer=responses.ResponseBody),
    _openai("DELETE", "/v1/responses/{response_id}", "Forget it", answer=responses.DeletedResponse),
    _openai(
        "GET",
        "/v1/responses/{response_id}/input_items",
        "What was said to it",
        answer=responses.ItemList,
    ),
    _openai(
        "POST",
        "/v1/embeddings",
        "Vectors of texts",
        request=embeddings.EmbeddingRequest,
        answer=embeddings.EmbeddingList,
    ),
    _openai(
        "POST",
        "/v1/rerank",
        "Rank documents by a query",
        request=embeddings.RerankRequest,
        answer=embeddings.Ranking,
    ),
    Operation(
        method="POST",
        path="/v1/messages",
        group="Anthropic",
        summary="Answer a conversation",
        request=anthropic.MessagesRequest,
        answer=anthropic.MessageAnswer,
        stream=SSE,
    ),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        group="Anthropic",
        summary="How many tokens such a conversation has",
        request=anthropic.CountRequest,
        answer=anthropic.TokenCount,
    ),
    _ollama("GET", "/api/version", "The appliance's version", answer=ollama.Version),
    _ollama("GET", "/api/tags", "The models on this machine", answer=ollama.Tags),
    _ollama("GET", "/api/ps", "The loaded models", answer=ollama.Running),
    _ollama(
        "POST", "/api/show", "Everything known of a model", request=ollama.ShowRequest, answer=ollama.Shown
    ),
    _ollama(
        "POST",
        "/api/chat",
        "Answer a chat; without messages, load or unload",
        request=ollama.OllamaChatRequest,
        answer=ollama.ChatLine,
        stream=NDJSON,
    ),
    _ollama(
        "POST",
        "/api/generate",
        "Answer a prompt; without one, load or unload",
        request=ollama.GenerateRequest,
        answer=ollama.GenerateLine,
        stream=NDJSON,
    ),
    _ollama(
        "POST",
        "/api/pull",
        "Install a model of the catalogue",
        request=ollama.PullRequest,
        answer=ollama.Status,
        stream=NDJSON,
    ),
    _ollama(
        "POST",
        "/api/create",
        "Make a model of another and a few settings",
        request=ollama.CreateRequest,
        answer=ollama.Status,
        stream=NDJSON,
    ),
    _ollama("POST", "/api/copy", "Give a model another name", request=ollama.CopyRequest),
    _ollama("DELETE", "/api/delete", "Delete a model or a name", request=ollama.ModelRequest),
    _ollama(
        "POST",
        "/api/embed",
        "Embeddings of texts",
        request=ollama.EmbedRequest,
        answer=ollama.Embedded,
    ),
    _ollama(
        "POST",
        "/api/embeddings",
        "Embedding of a text, older form",
        request=ollama.EmbeddingsRequest,
        answer=ollama.OneEmbedded,
    ),
    Operation(
        method="POST",
        path="/tokenize",
        group="Operations",
        summary="The tokens of a text",
        request=operations.TokenizeRequest,
        answer=operations.Tokenized,
    ),
    Operation(
        method="POST",
        path="/detokenize",
        group="Operations",
        summary="The text of tokens",
        request=operations.DetokenizeRequest,
        answer=operations.Detokenized,
    ),
    Operation(
        method="POST",
        path="/apply-template",
        group="Operations",
        summary="A chat as the model reads it",
        request=openai.ChatRequest,
        answer=operations.RenderedChat,
    ),
    Operation(
        method="GET",
        path="/props",
        group="Operations",
        summary="The model's context, template and defaults",
        answer=operations.Props,
    ),
    Operation(
        method="GET",
        path="/health",
        group="Operations",
        summary="200 when ready, else 503; the phase in both",
        answer=Health,
        needs_key=False,
    ),
    Operation(
        method="GET",
        path="/health/live",
        group="Operations",
        summary="200 while the process is up",
        needs_key=False,
    ),
    Operation(
        method="GET",
        path="/system/v1/snapshot",
        group="Operations",
        summary="What the dashboard shows",
        answer=SystemSnapshot,
    ),
    Operation(
        method="GET",
        path="/system/v1/requests",
        group="Operations",
        summary="Finished requests, stage by stage, with percentiles",
        answer=FinishedRequests,
    ),
    Operation(
        method="GET",
        path="/metrics",
        group="Operations",
        summary="Everything that Prometheus scrapes",
        media_type=TEXT,
    ),
    Operation(
        method="GET",
        path="/system/v1/events",
        group="Operations",
        summary="The same twice a second",
        media_type=SSE,
    ),
    Operation(
        method="GET",
        path="/system/v1/models",
        group="Operations",
        summary="Every model and its state",
        answer=ModelStatuses,
    ),
    Operation(
        method="POST",
        path="/system/v1/models/pull",
        group="Operations",
        summary="Download a model of the catalogue",
        request=NamedModel,
        answer=ollama.Status,
        stream=NDJSON,
    ),
    Operation(
        method="POST",
        path="/system/v1/models/load",
        group="Operations",
        summary="Load a model",
        request=NamedModel,
        answer=ollama.Status,
        stream=NDJSON,
    ),
    Operation(
        method="POST",
        path="/system/v1/models/unload",
        group="Operations",
        summary="Unload a model when its answers have ended",
        request=NamedModel,
        answer=ModelStatuses,
    ),
    Operation(
        method="GET",
        path="/system/v1/logs",
        group="Operations",
        summary="The last log lines; ?after=NUMBER gives those since",
        answer=LogEntries,
    ),
)
