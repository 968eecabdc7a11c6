"""What a server says of itself over HTTP: its models, and an appliance its memory."""

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


def resident_bytes(url: str, api_key: str | None) -> int | None:
    """Return an appliance's resident memory; None for other servers."""
    try:
        answer = httpx.get(f"{url}/system/v1/snapshot", headers=_headers(api_key), timeout=_TIMEOUT_S)
        return int(answer.raise_for_status().json()["memory"]["process_resident_bytes"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
