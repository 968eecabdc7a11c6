"""The JSON of an error in each protocol, chosen by the path that was asked. Knows no errors' causes."""

from collections.abc import Callable

import msgspec

from appliance.server.openai_schemas import ErrorBody, ErrorResponse

# status, message, the field at fault, the stable name -> body
ErrorShape = Callable[[int, str, str | None, str | None], bytes]

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",  # what its clients take as: wait and try again
}


class OllamaError(msgspec.Struct, frozen=True, kw_only=True):
    """`{"error": "..."}`: also a line inside a stream."""

    error: str


class AnthropicErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "error"
    error: AnthropicErrorBody


def shape_for(path: str) -> ErrorShape:
    """Return the shape that clients of this path read."""
    if _is_at(path, "/api"):
        return ollama_error
    if _is_at(path, "/v1/messages"):
        return anthropic_error
    return openai_error


def openai_error(status: int, message: str, param: str | None, code: str | None) -> bytes:
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = ErrorBody(message=message, type=kind, param=param, code=code)
    return msgspec.json.encode(ErrorResponse(error=body))


def ollama_error(_status: int, message: str, _param: str | None, _code: str | None) -> bytes:
    return msgspec.json.encode(OllamaError(error=message))


def anthropic_error(status: int, message: str, _param: str | None, _code: str | None) -> bytes:
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return msgspec.json.encode(AnthropicError(error=AnthropicErrorBody(type=kind, message=message)))


def _is_at(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")
