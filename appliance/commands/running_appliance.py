"""A running appliance as the commands see it: its models, unloading, chats. HTTP only."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import quote

import httpx

from appliance.commands.settings_args import settings_from
from appliance.errors import ApplianceError, UnknownModel

# A model is loaded within it, and a stream says something at least every few seconds.
_TIMEOUT_S = 600.0
_CONNECT_TIMEOUT_S = 2.0
_DONE = "[DONE]"


class NotRunning(ApplianceError):  # named like the family in errors.py
    """Nothing answers at the address."""

    code = "not_running"


class Refused(ApplianceError):  # named like the family in errors.py
    """The appliance said no; the message is its own."""

    code = "refused"


class RunningAppliance:
    """Close it, or use it as a context."""

    def __init__(
        self, url: str, api_key: str | None = None, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url if "://" in url else f"http://{url}"
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            transport=transport,
            trust_env=False,
        )

    def __enter__(self) -> "RunningAppliance":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[dict[str, Any]]:  # Any: JSON
        """Raises NotRunning, Refused."""
        found: list[dict[str, Any]] = self._ask("GET", "/system/v1/models")["models"]
        return found

    def require_model(self, name: str) -> None:
        """Raises UnknownModel unless it answers for that name; NotRunning, Refused."""
        self._ask("GET", f"/v1/models/{quote(name, safe='')}")

    def unload(self, name: str) -> None:
        """Raises NotRunning, Refused, UnknownModel."""
        self._ask("POST", "/system/v1/models/unload", {"model": name})

    def chat(
        self, model: str, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield the answer's pieces. Raises NotRunning, Refused."""
        body = {"model": model, "messages": list(messages), "stream": True, **options}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                    _refuse(answer)
                yield from _pieces(answer.iter_lines())
        except httpx.TransportError as error:
            raise self._not_running() from error

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:  # Any: JSON
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._not_running() from error
        if answer.status_code != 200:
            _refuse(answer)
        return answer.json()

    def _not_running(self) -> NotRunning:
        return NotRunning(
            f"no appliance answers at {self.url}; start one with `appliance serve`, or set --url"
        )


def appliance_at(args: argparse.Namespace) -> RunningAppliance:
    """The one at the given address, by default the one that these settings would start."""
    settings = settings_from(args)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "https" if settings.tls_cert else "http"
    return RunningAppliance(args.url or f"{scheme}://{host}:{settings.port}", settings.api_key)


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        data = line.removeprefix("data: ")
        if data in (line, _DONE):
            continue
        event = json.loads(data)
        if "error" in event:
            raise Refused(event["error"]["message"])
        for choice in event["choices"]:
            yield choice["delta"].get("content") or ""


def _refuse(answer: httpx.Response) -> NoReturn:
    try:
        error = answer.json()["error"]
        message, code = error["message"], error.get("code")
    except (ValueError, KeyError, TypeError):
        message, code = f"{answer.url} answered {answer.status_code}", None
    if answer.status_code == 404 and code in ("model_not_found", "model_not_installed"):
        unknown = UnknownModel("")
        unknown.message = message
        raise unknown
    raise Refused(message)
