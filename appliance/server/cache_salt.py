"""Whose computed prompts a request may reuse, as one text. Knows no blocks."""

from litestar.types import HTTPScope

from appliance.server.access import access_of
from appliance.server.openai_schemas import SamplingFields


def cache_salt(scope: HTTPScope, wanted: SamplingFields) -> str:
    """Return the tenant and, where the client names one, its `prompt_cache_key`, else its `user`.

    How fast an answer begins tells whether somebody asked the same before: named users do not learn that of
    each other. A client that wants them to share names one `prompt_cache_key` for all.
    """
    partition = _text(wanted.prompt_cache_key) or _text(wanted.user)
    return tenant_salt(scope, partition)


def tenant_salt(scope: HTTPScope, partition: str = "") -> str:
    """Return the tenant and the part of its prompts that a request belongs to."""
    return f"{access_of(scope).tenant}/{partition}"


def _text(raw: bytes) -> str:
    """JSON as it came, of any kind; null is nothing."""
    text = bytes(raw).decode()
    return "" if text == "null" else text
