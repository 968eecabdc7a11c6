"""Sends a share of the finished requests as spans to an OpenTelemetry collector, by OTLP over HTTP.

Sends in batches from a thread of its own and never holds up a request: what a collector does not take in time
is dropped. Holds no word of a request.
"""

import logging
import secrets
import time
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import httpx

from appliance.errors import BadSetting
from appliance.observe.batch_worker import BatchWorker
from appliance.observe.otlp import encode_request
from appliance.observe.request_context import RequestContext
from appliance.observe.spans import Ended, Span, spans_of

_PATH = "/v1/traces"
_MOST_QUEUED = 2000  # requests: a few MB
_TIMEOUT_S = 5.0
# What the standard says to send again; anything else would be refused again.
_AGAIN = (429, 502, 503, 504)
_SCOPE = "appliance"
_log = logging.getLogger(__name__)


class TraceExporter:
    """`finished` may be called by any thread."""

    def __init__(
        self,
        url: str,
        *,
        share: float,
        headers: Mapping[str, str],
        resource: Mapping[str, str],
        version: str,
    ) -> None:
        self._url = url
        self._share = share
        self._client = httpx.Client(
            headers={**headers, "content-type": "application/x-protobuf"}, timeout=_TIMEOUT_S, trust_env=False
        )
        self._resource = tuple(resource.items())
        self._version = version
        self._worker = BatchWorker[Ended]("traces", self._send, most_queued=_MOST_QUEUED)
        self._unsent: list[Span] = []
        self._is_failing = False

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        self._worker.close()
        self._client.close()

    def finished(self, context: RequestContext, status: int) -> None:
        """Queue the request for its spans if it is one of those that are traced."""
        parent = context.parent
        trace_id = parent.trace_id if parent else secrets.token_hex(16)
        if parent.is_sampled if parent else is_in_share(trace_id, self._share):
            self._worker.add(Ended(context, trace_id, status, time.time()))

    def _send(self, requests: list[Ended]) -> bool:
        """Send a batch with what could not be sent last time, which is given up if that fails again."""
        spans = [*self._unsent, *(span for request in requests for span in spans_of(request))]
        body = encode_request(spans, self._resource, _SCOPE, self._version)
        problem, is_worth_again = self._post(body)
        self._unsent = spans[len(self._unsent) :] if is_worth_again else []
        if problem and not self._is_failing:
            _log.warning("traces are not sent to %s: %s; requests go on without", self._url, problem)
        elif self._is_failing and not problem:
            _log.info("traces are sent to %s again", self._url)
        self._is_failing = bool(problem)
        return True

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Return what went wrong, if anything, and whether it may go well another time."""
        try:
            answer = self._client.post(self._url, content=body)
        except httpx.LocalProtocolError:
            return "its address or headers cannot be sent", False
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__, True
        if answer.is_success:
            return "", False
        return f"it answered {answer.status_code}", answer.status_code in _AGAIN


def is_in_share(trace_id: str, share: float) -> bool:
    """Decide by the trace's own id, so that every service that does so keeps the same traces."""
    return int(trace_id[-14:], 16) < share * 16**14


def traces_url(endpoint: str) -> str:
    """Return where spans go: a collector's address, with or without the path. Raises BadSetting."""
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(httpx.URL(endpoint).host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        is_address = False
    if not is_address:
        raise BadSetting(
            "--otlp-endpoint is no collector's address; write one such as http://localhost:4318",
            param="otlp_endpoint",
        )
    if parts.username or parts.password:
        raise BadSetting(
            "--otlp-endpoint holds a name or password, which logs would show; put them into --otlp-headers",
            param="otlp_endpoint",
        )
    return endpoint if parts.path.endswith(_PATH) else endpoint.rstrip("/") + _PATH


def read_headers(text: str | None) -> dict[str, str]:
    """Read `name=value,name=value`, values as in an address (`%20`).

    Raises BadSetting, which shows no value: they are keys.
    """
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair.strip()]
    if any(not name.strip() or not value.strip() for name, _, value in pairs):
        raise BadSetting("--otlp-headers is not NAME=VALUE,...", param="otlp_headers")
    headers = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
    if any(not (part.isascii() and part.isprintable()) for pair in headers.items() for part in pair):
        raise BadSetting("--otlp-headers has a name or value that is no plain text", param="otlp_headers")
    return headers
