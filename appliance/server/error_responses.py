"""Turns errors into HTTP: a status, headers and the error JSON of the path's protocol. Knows no routes."""

import logging
import uuid
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from appliance.errors import ApplianceError, ErrorKind
from appliance.server.error_shapes import shape_for

_log = logging.getLogger(__name__)

STATUS_BY_KIND = {
    ErrorKind.INVALID_REQUEST: 400,
    ErrorKind.UNAUTHORIZED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.OVERLOADED: 429,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.INTERNAL: 500,
}
_CODE_BY_STATUS = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
_DEFAULT_RETRY_AFTER_S = 5


class Unauthorized(ApplianceError):  # named like the family in errors.py
    """The API key is missing or wrong."""

    kind = ErrorKind.UNAUTHORIZED
    code = "invalid_api_key"


class ForeignHost(ApplianceError):  # named like the family in errors.py
    """A keyless appliance was addressed by a name that is not this machine's loopback."""

    kind = ErrorKind.FORBIDDEN
    code = "foreign_host"


class BodyTooLarge(ApplianceError):  # named like the family in errors.py
    """The request's body is longer than the limit."""

    kind = ErrorKind.TOO_LARGE
    code = "request_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"the request body is larger than the limit of {limit_bytes // 2**20} MiB; send a shorter prompt"
        )


class UnsupportedMediaType(ApplianceError):  # named like the family in errors.py
    """The body is declared as something other than JSON."""

    kind = ErrorKind.INVALID_REQUEST
    code = "unsupported_media_type"
    status = 415

    def __init__(self, media_type: str) -> None:
        super().__init__(f"the content type is '{media_type[:100]}'; send application/json")


def status_of(error: ApplianceError) -> int:
    if isinstance(error, UnsupportedMediaType):
        return error.status
    return STATUS_BY_KIND[error.kind]


def error_json(error: ApplianceError, path: str = "/v1") -> bytes:
    """The body, in the shape of the path's protocol."""
    return encode_error(status_of(error), error.message, param=error.param, code=error.code, path=path)


def encode_error(
    status: int, message: str, *, param: str | None = None, code: str | None = None, path: str = "/v1"
) -> bytes:
    return shape_for(path)(status, message, param, code)


def error_headers(error: ApplianceError) -> dict[str, str]:
    """Retry-After for 429 and 503, WWW-Authenticate for 401, Connection for 413."""
    status = status_of(error)
    if status in (429, 503):
        return {"retry-after": str(getattr(error, "retry_after_s", _DEFAULT_RETRY_AFTER_S))}
    if status == 401:
        return {"www-authenticate": 'Bearer realm="appliance"'}
    if status == 413:
        return {"connection": "close"}  # the rest of the body is not worth reading
    return {}


def unexpected_error(error: BaseException) -> ApplianceError:
    """Log an error that nobody foresaw; return one that tells a client only where to look."""
    error_id = uuid.uuid4().hex[:12]
    _log.error("unexpected error %s", error_id, exc_info=error)
    return ApplianceError(f"the appliance failed unexpectedly; its log tells more under {error_id}")


def handle_appliance_error(request: Request[Any, Any, Any], error: ApplianceError) -> Response[bytes]:
    body = error_json(error, request.scope["path"])
    return json_response(body, status=status_of(error), headers=error_headers(error))


def handle_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What the framework itself refuses: unknown paths, wrong methods, malformed hosts."""
    status, path = error.status_code, request.scope["path"]
    message = error.detail or "the request was refused"
    if isinstance(error, NotFoundException):
        message = f"there is nothing at {path[:200]}; GET /docs lists what there is"
    elif isinstance(error, MethodNotAllowedException):
        message = f"{path[:200]} does not answer {request.method}"
    body = encode_error(status, message, code=_CODE_BY_STATUS.get(status), path=path)
    return json_response(body, status=status, headers=error.headers)


def handle_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    failure = unexpected_error(error)
    return json_response(error_json(failure, request.scope["path"]), status=500)


def handle_client_gone(_: Request[Any, Any, Any], __: Exception) -> Response[None]:
    """Nobody reads this answer; the status is the one that other servers log."""
    return Response(None, status_code=499)


def json_response(
    body: bytes, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response[bytes]:
    return Response(body, status_code=status, headers=headers, media_type="application/json")
