"""Reads and decodes JSON request bodies. Knows sizes and where an error lies; knows no field's meaning."""

import asyncio
import logging
import re
import time
from typing import Generic, TypeVar

import msgspec
from litestar.types import HTTPScope, Receive

from appliance.errors import InvalidRequest
from appliance.server.appliance_state import ServerLimits
from appliance.server.error_responses import BodyTooLarge, UnsupportedMediaType

# Where a scope's state holds the seconds that its body took to come in.
RECEIVE_KEY = "appliance_receive_s"
_log = logging.getLogger(__name__)
_RequestT = TypeVar("_RequestT", bound=msgspec.Struct)

_PATH = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")
_MAX_NAMES_LOGGED = 200
_MAX_NAME_CHARS = 60


class ClientGone(Exception):  # an event, not a fault
    """The client closed the connection before its request was complete."""


class InvalidJson(InvalidRequest):
    """The body is not JSON, or not the JSON of a request."""

    code = "invalid_json"


_CURLS_OWN = "application/x-www-form-urlencoded"
_BROWSERS_TELL = (b"origin", b"sec-fetch-site", b"referer")


async def read_body(scope: HTTPScope, receive: Receive, limits: ServerLimits) -> bytes:
    """Return the whole body. Raises BodyTooLarge without reading it all, InvalidRequest, ClientGone."""
    _check_media_type(scope)
    announced = header(scope, b"content-length")
    if announced and announced.isdigit() and int(announced) > limits.max_body_bytes:
        raise BodyTooLarge(limits.max_body_bytes)
    parts, num_bytes, more, began_s = [], 0, True, time.monotonic()
    while more:
        part, more = await _receive_part(receive, limits.body_timeout_s)
        num_bytes += len(part)
        if num_bytes > limits.max_body_bytes:
            raise BodyTooLarge(limits.max_body_bytes)
        parts.append(part)
    scope["state"][RECEIVE_KEY] = time.monotonic() - began_s
    return b"".join(parts)


async def _receive_part(receive: Receive, timeout_s: float) -> tuple[bytes, bool]:
    try:
        async with asyncio.timeout(timeout_s):
            message = await receive()
    except TimeoutError:
        raise InvalidRequest(f"the request body stopped for {timeout_s:g} s; send it in one go") from None
    if message["type"] != "http.request":
        raise ClientGone
    return message["body"], message["more_body"]


def header(scope: HTTPScope, name: bytes) -> str | None:
    """The first header of that lower-case name."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _check_media_type(scope: HTTPScope) -> None:
    """A foreign web page may send text and forms without asking first, never application/json.

    Ollama's documentation calls its routes with curl, which says that JSON is a form; browsers tell whose
    page sends one.
    """
    encoding = (header(scope, b"content-encoding") or "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaType(f"application/json in {encoding}")
    media_type = (header(scope, b"content-type") or "application/json").split(";")[0].strip().lower()
    is_curl = media_type == _CURLS_OWN and not any(header(scope, name) for name in _BROWSERS_TELL)
    if media_type != "application/json" and not (is_curl and scope["path"].startswith("/api/")):
        raise UnsupportedMediaType(media_type)


class BodyDecoder(Generic[_RequestT]):
    """Decodes one kind of request. Unknown fields are ignored, and logged once by name.

    The last of duplicate keys counts.
    """

    def __init__(self, request_type: type[_RequestT]) -> None:
        self._decoder = msgspec.json.Decoder(request_type)
        self._fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._known = {field.encode_name for field in msgspec.structs.fields(request_type)}
        self._logged: set[str] = set()

    def decode(self, body: bytes) -> _RequestT:
        """Raises InvalidJson, or InvalidRequest naming the field."""
        try:
            unknown = self._fields.decode(body).keys() - self._known
            request = self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise as_invalid_request(str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidJson(f"the request body is not valid JSON in UTF-8: {error}") from error
        except RecursionError:
            raise InvalidJson("the request body is nested too deeply; send fewer levels") from None
        if unknown:
            self._log_once(unknown)
        return request

    def _log_once(self, names: set[str]) -> None:
        for name in sorted(names - self._logged):
            if len(self._logged) < _MAX_NAMES_LOGGED:
                self._logged.add(name)
                _log.info("the unknown field %r is ignored from now on", name[:_MAX_NAME_CHARS])


def as_invalid_request(message: str, *, root: str = "") -> InvalidRequest:
    """Return the error for what msgspec found; `root` is the field that it looked into."""
    path = _PATH.search(message)
    missing = _MISSING.search(message)
    place = ".".join(filter(None, (root, path[1] if path else "")))
    if missing:
        place = f"{place}.{missing[1]}" if place else missing[1]
    if not place:
        return InvalidJson(f"the request body does not fit: {message}; send a JSON object")
    reason = message[: path.start()] if path else message
    return InvalidRequest(f"'{place}' is not valid: {reason}", param=place)
