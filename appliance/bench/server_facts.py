"""What a server says of itself over HTTP: its models, and an appliance its memory."""

from typing import Any

import httpx

from appliance.bench.session import ServerUnusable

_TIMEOUT_S = 10.0


def first_model(url: str, api_key: str | None) -> str:
    """Return the id of the first model that the server lists. Raises ServerUnusable."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        answer = httpx.get(f"{base}/v1/models", headers=_headers(api_key), timeout=_TIMEOUT_S)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
        raise ServerUnusable(
            f"{url} lists no model ({error}); is a server there? name one with --model"
        ) from error


def own_bytes(url: str, api_key: str | None) -> int | None:
    """Return an appliance's resident memory without what its KV cache holds; None for other servers."""
    try:
        answer = httpx.get(f"{url}/system/v1/snapshot", headers=_headers(api_key), timeout=_TIMEOUT_S)
        return bytes_without_cache(answer.raise_for_status().json())
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


def bytes_without_cache(snapshot: dict[str, Any]) -> int:
    """A pool in main memory becomes resident as the cache fills it, for hours: that is no leak."""
    resident, kv, model = int(snapshot["memory"]["process_resident_bytes"]), snapshot["kv"], snapshot["model"]
    if not kv or not model or model["device"] != "cpu":
        return resident
    held = kv["used_blocks"] + kv["cached_blocks"]
    return resident - int(held * kv["pool_bytes"] / max(1, kv["num_blocks"]))


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
