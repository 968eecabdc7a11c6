"""Models from Hugging Face: its cache on this machine, then its server. Knows nothing of digests.

The hub's own library says where things are (HF_ENDPOINT, HF_TOKEN, HF_HOME, its cache). The bytes come by our
own client: the library starts an interrupted download again from zero, and reports on its users.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from appliance.catalog import HubSource
from appliance.download.http_download import HttpDownload
from appliance.download.transfer import link_or_copy
from appliance.download.workspace import PullPhase, SourceError, Workspace

if TYPE_CHECKING:
    import httpx

# The hub's machine-readable reasons, in words that help.
_REASONS = {
    "GatedRepo": "its licence must be accepted on the model's page first; then set HF_TOKEN",
    "RepoNotFound": "there is no such repository, or it is private: set HF_TOKEN",
    "RevisionNotFound": "the repository no longer has this revision",
    "EntryNotFound": "the repository no longer has this file",
}


def fetch_cached(source: HubSource, work: Workspace) -> None:
    """Link or copy the file from the machine's Hugging Face cache. Raises SourceError if it is absent."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.repository, source.file, revision=source.revision)
    if not isinstance(found, str):
        raise SourceError("not in the cache")
    link_or_copy(
        Path(found).resolve(),
        work.partial,
        limit_bytes=work.entry.size_bytes,
        on_progress=lambda done: work.tell(PullPhase.ASSEMBLING, done),
    )


def fetch_remote(source: HubSource, work: Workspace) -> None:
    """Download the file, going on where an earlier download stopped. Raises SourceError with the remedy."""
    from huggingface_hub import constants, get_token, hf_hub_url

    if constants.HF_HUB_OFFLINE:
        raise SourceError("HF_HUB_OFFLINE is set")
    token = get_token()
    target = work.staging / "download"
    work.tell(PullPhase.DOWNLOADING)
    HttpDownload(
        hf_hub_url(source.repository, source.file, revision=source.revision),
        target,
        size_bytes=work.entry.size_bytes,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        explain=_explain,
        on_progress=lambda done: work.tell(PullPhase.DOWNLOADING, done),
    ).run()
    target.replace(work.partial)


def _explain(response: "httpx.Response") -> str:
    reason = _REASONS.get(response.headers.get("X-Error-Code", ""))
    if reason is None and response.status_code in (401, 403):
        reason = "access is refused: set HF_TOKEN to a token that may read it"
    return reason or f"the server answers {response.status_code} {response.reason_phrase}".rstrip()
