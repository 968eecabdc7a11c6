"""What can go wrong, said for the person who can mend it. Knows nothing of HTTP or exit codes' callers.

Every message names the value, the limit and the remedy. The server maps `code` and `kind` onto its
protocols; the command line maps `exit_code`.
"""

from enum import StrEnum

__all__: list[str] = []


class ErrorKind(StrEnum):
    """Who can mend it: this decides the HTTP status in every protocol."""

    INVALID_REQUEST = "invalid_request"  # the client: 400
    UNAUTHORIZED = "unauthorized"  # the client's key: 401
    FORBIDDEN = "forbidden"  # the client's origin: 403
    NOT_FOUND = "not_found"  # the client's name for something: 404
    TOO_LARGE = "too_large"  # the client's body: 413
    OVERLOADED = "overloaded"  # come back later: 429
    UNAVAILABLE = "unavailable"  # not ready, draining, out of time: 503
    INTERNAL = "internal"  # the appliance: 500


class ApplianceError(Exception):
    """Base of every error that a user may see.

    `code` is a stable snake_case name for programs; `param` the request field or setting at fault.
    """

    kind = ErrorKind.INTERNAL
    code = "internal_error"
    exit_code = 1

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(ApplianceError):
    """A request field holds a value that cannot be honoured."""

    kind = ErrorKind.INVALID_REQUEST
    code = "invalid_value"


class UnsupportedField(InvalidRequest):
    """A known field asks for something this version does not do."""

    code = "unsupported_parameter"

    def __init__(self, field: str, *, remedy: str) -> None:
        super().__init__(f"'{field}' is not supported by this version; {remedy}", param=field)


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room for an answer within the context."""

    code = "context_length_exceeded"

    def __init__(self, *, num_tokens: int, limit: int) -> None:
        excess = num_tokens + 1 - limit
        super().__init__(
            f"the prompt has {num_tokens} tokens and this model's context is {limit}, one of which the "
            f"answer needs; shorten the prompt by {excess} token{'s' if excess != 1 else ''}",
            param="messages",
        )


class QueueFull(ApplianceError):
    """More requests wait than the configured queue holds."""

    kind = ErrorKind.OVERLOADED
    code = "queue_full"

    def __init__(self, *, num_waiting: int, limit: int, retry_after_s: int) -> None:
        super().__init__(
            f"{num_waiting} requests are waiting and the queue holds {limit}; "
            f"try again in {retry_after_s} s or raise --queue"
        )
        self.retry_after_s = retry_after_s


class NotReady(ApplianceError):
    """The appliance is loading, draining or failed."""

    kind = ErrorKind.UNAVAILABLE
    code = "not_ready"

    def __init__(self, message: str, *, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeviceLost(ApplianceError):
    """The device that computes is gone, or its driver is; nothing runs until the process starts anew."""

    kind = ErrorKind.UNAVAILABLE
    code = "device_lost"


class GenerationFailed(ApplianceError):
    """The engine ended one sequence with an error; the others go on."""

    code = "generation_failed"


class DeadlinePassed(ApplianceError):
    """A request waited in the queue past its deadline."""

    kind = ErrorKind.UNAVAILABLE
    code = "deadline_exceeded"

    def __init__(self, *, waited_s: float, deadline_s: float) -> None:
        super().__init__(
            f"the request waited {waited_s:.1f} s in the queue and its deadline is {deadline_s:.1f} s; "
            "try again later, or raise --deadline"
        )
        self.retry_after_s = max(1, round(deadline_s / 2))


class UnknownModel(ApplianceError):
    """No catalogue entry, file or loaded model has this name."""

    kind = ErrorKind.NOT_FOUND
    code = "model_not_found"
    exit_code = 4

    def __init__(self, name: str, *, nearest: tuple[str, ...] = ()) -> None:
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else "see `appliance list` for the names"
        super().__init__(f"the model '{name}' does not exist; {hint}", param="model")
        self.name = name
        self.nearest = nearest


class NotInstalled(UnknownModel):
    """The catalogue has it, this machine has not."""

    code = "model_not_installed"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.message = (
            f"the model '{name}' is in the catalogue and not on this machine; get it with "
            f"`appliance pull {name}` or POST /api/pull"
        )
        self.args = (self.message,)


class BadModelFile(ApplianceError):
    """A model file is truncated, foreign, or contradicts itself. Names the field and the bound."""

    code = "bad_model_file"
    exit_code = 5


class UnsupportedModel(ApplianceError):
    """A well-formed model file needs an architecture, type or tokenizer that this version lacks."""

    code = "unsupported_model"
    exit_code = 5


class DownloadFailed(ApplianceError):
    """No source gave the model, or what came was not the model."""

    code = "download_failed"
    exit_code = 6


class BadSetting(ApplianceError):
    """A flag, environment variable or settings key holds a value that cannot be honoured."""

    code = "bad_setting"
    exit_code = 2


class NoUsableGpu(BadSetting):
    """A GPU is asked for by name and cannot be used: no card, no driver, an old one of either."""


class NotEnoughMemory(ApplianceError):
    """The model and the smallest useful KV pool do not fit. Says what is needed, free, and would fit."""

    kind = ErrorKind.UNAVAILABLE
    code = "not_enough_memory"
    exit_code = 7


class NotEnoughGpuMemory(NotEnoughMemory):
    """The same of a card, whose memory other programs may hold for now."""


class PortTaken(ApplianceError):
    """Another process listens on the address; `appliance_url` is set where that is an appliance."""

    code = "port_taken"
    exit_code = 8

    def __init__(self, message: str, *, appliance_url: str | None = None) -> None:
        super().__init__(message, param="port")
        self.appliance_url = appliance_url


class StorageNotWritable(ApplianceError):
    """A folder that must be written cannot be."""

    code = "storage_not_writable"
    exit_code = 9
