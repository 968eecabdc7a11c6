"""The page at `/` and its files, under a policy that lets the browser ask nobody but this address.

One address for two kinds of client: browsers ask for text/html and get the page, Ollama's clients the line
that they look for. The files hold nothing secret and are open without a key: the page asks for it.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litestar import Request, Response, route
from litestar.enums import HttpMethod
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler

GREETING = b"Ollama is running"
_FOLDER = Path(__file__).parent / "web"
_LOOK = (HttpMethod.GET, HttpMethod.HEAD)
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFile:
    """One file of the page, ready to send."""

    body: bytes
    media_type: str
    etag: str


def web_files() -> dict[str, WebFile]:
    """Every file of the page, by name."""
    return {path.name: _read(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}


def web_routes() -> list[HTTPRouteHandler]:
    """The handlers of `/` and `/web/`. The files are read once."""
    files = web_files()

    @route("/", http_method=_LOOK, sync_to_thread=False)
    def greet(request: Request[Any, Any, Any]) -> Response[bytes]:
        if "text/html" in request.headers.get("accept", ""):
            return _answer(request, files["index.html"], vary=True)
        return Response(GREETING, media_type="text/plain", headers={"vary": "accept"})

    @route("/web/{name:str}", http_method=_LOOK, sync_to_thread=False)
    def get_web_file(request: Request[Any, Any, Any]) -> Response[bytes]:
        name = str(request.path_params["name"])
        if name not in files:
            raise NotFoundException
        return _answer(request, files[name])

    return [greet, get_web_file]


def _answer(request: Request[Any, Any, Any], file: WebFile, *, vary: bool = False) -> Response[bytes]:
    """A browser asks again each time and is told in a few bytes that nothing changed."""
    headers = {**SECURITY_HEADERS, "etag": file.etag, "cache-control": "no-cache"}
    if vary:
        headers["vary"] = "accept"
    if request.headers.get("if-none-match") == file.etag:
        return Response(b"", status_code=304, headers=headers, media_type=file.media_type)
    return Response(file.body, headers=headers, media_type=file.media_type)


def _read(path: Path) -> WebFile:
    body = path.read_bytes()
    digest = hashlib.sha256(body).hexdigest()[:20]
    return WebFile(body=body, media_type=_TYPES[path.suffix], etag=f'"{digest}"')
