"""The answers of the appliance's other routes, as far as the dashboard reads them. Knows no HTTP."""

import msgspec


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    quantization_level: str = ""
    parameter_size: str = ""


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    """One of `GET /api/tags`: on the appliance's disk."""

    name: str
    size: int
    details: ModelDetails = ModelDetails()


class StoredModels(msgspec.Struct, frozen=True, kw_only=True):
    models: list[StoredModel]


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One of `GET /api/ps`: in memory, KV pool included."""

    name: str
    size: int


class LoadedModels(msgspec.Struct, frozen=True, kw_only=True):
    models: list[LoadedModel]


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One of `GET /system/v1/models`, which knows the catalogue too."""

    id: str
    state: str  # loaded, loading, draining, installed, available
    size_bytes: int = 0
    detail: str = ""
    progress: float | None = None
    weights_bytes: int = 0
    kv_pool_bytes: int = 0
    requests: int = 0


class ListedModels(msgspec.Struct, frozen=True, kw_only=True):
    models: list[ListedModel]


class PullLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `POST /api/pull`."""

    status: str = ""
    total: int | None = None
    completed: int | None = None
    error: str | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    content: str | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    delta: Delta = Delta()
    finish_reason: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str = ""


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Either protocol's error."""

    error: ErrorBody | str = ""

    @property
    def text(self) -> str:
        """The message alone."""
        return self.error if isinstance(self.error, str) else self.error.message


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: ErrorBody | None = None


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a chat."""

    role: str
    content: str
