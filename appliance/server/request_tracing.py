"""Gives every HTTP request its id and, where the caller has one, its trace; tells who traces how it ended.

Stands before everything else, so that refusals and unknown paths have an id too. Knows no protocol but how
its ids begin.
"""

import uuid
from collections.abc import Callable

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from appliance.observe.request_context import RequestContext, current_request, serving
from appliance.observe.traceparent import TraceParent
from appliance.server.request_body import header

# So that lines logged before an answer has begun bear the id that it will have.
_PREFIXES = {
    "/v1/chat/completions": "chatcmpl-",
    "/v1/completions": "cmpl-",
    "/v1/responses": "resp_",
    "/v1/messages": "msg_",
    "/api/chat": "ollama-",
    "/api/generate": "ollama-",
}
_OTHER = "req-"
# What nobody heard the end of.
_NO_STATUS = 499
Finished = Callable[[RequestContext, int], None]


def answer_id(prefix: str) -> str:
    """The current request's id, which its answer bears too."""
    context = current_request()
    if context is None:
        return prefix + uuid.uuid4().hex
    if not context.request_id.startswith(prefix):
        context.request_id = prefix + uuid.uuid4().hex
    return context.request_id


class TracedRequests:
    """An ASGI application in front of all others. `finished` is told of each POST with its status."""

    def __init__(self, app: ASGIApp, finished: Finished | None = None) -> None:
        self._app = app
        self._finished = finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        context = _context_of(scope)
        ended_with = _NO_STATUS

        async def send_named(message: Message) -> None:
            nonlocal ended_with
            if message["type"] == "http.response.start":
                ended_with = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", context.request_id.encode())]
            await send(message)

        with serving(context):
            try:
                await self._app(scope, receive, send_named)
            except Exception:  # told as what it is; whoever runs this application logs it
                ended_with = 500 if ended_with == _NO_STATUS else ended_with
                raise
            finally:
                if self._finished is not None and scope["method"] == "POST":
                    self._finished(context, ended_with)


def _context_of(scope: HTTPScope) -> RequestContext:
    path = scope["path"]
    return RequestContext(
        request_id=_PREFIXES.get(path, _OTHER) + uuid.uuid4().hex,
        path=path,
        parent=TraceParent.parse(header(scope, b"traceparent")),
    )
