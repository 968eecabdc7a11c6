"""Hugging Face's address, token and cache, in a process of its own.

Its library reads the environment once, when it is imported.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from appliance.catalog import HubSource, ModelEntry
from appliance.download.store import ModelStore

REVISION = "0123456789abcdef0123456789abcdef01234567"
SOURCE = HubSource(repository="maker/tiny-GGUF", revision=REVISION, file="quants/tiny.gguf")
PULL = """
import sys
from pathlib import Path
import msgspec
from appliance.catalog import ModelEntry
from appliance.download.pull import pull
from appliance.download.store import ModelStore
from appliance.errors import ApplianceError

entry = msgspec.json.decode(sys.argv[1], type=ModelEntry)
try:
    print(pull(entry, ModelStore(Path(sys.argv[2]))))
except ApplianceError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def pull_elsewhere(
    entry: ModelEntry, store: ModelStore, home: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Pull in a fresh interpreter whose Hugging Face cache is `home`."""
    arguments = [sys.executable, "-c", PULL, msgspec.json.encode(entry).decode(), str(store.models_dir)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    surroundings = clean | {"PYTHONPATH": str(Path(__file__).parents[2]), "HF_HOME": str(home)} | environment
    return subprocess.run(
        arguments, env=surroundings, capture_output=True, text=True, timeout=60, check=False
    )


def fill_cache(home: Path, data: bytes) -> Path:
    """Lay out a cached file as the hub's library does: a relative link from the snapshot to the blob."""
    repository = home / "hub" / "models--maker--tiny-GGUF"
    blob = repository / "blobs" / hashlib.sha256(data).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.write_bytes(data)
    link = repository / "snapshots" / REVISION / "quants" / "tiny.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(Path("../../../blobs") / blob.name)
    return blob


def test_endpoint_and_token_are_honoured_and_nothing_else_is_asked(
    server, store, make_entry, tmp_path, content
):
    done = pull_elsewhere(
        make_entry(SOURCE), store, tmp_path / "hf", HF_ENDPOINT=server.url, HF_TOKEN="hf_secret"
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == content
    (request,) = server.requests
    assert request["path"] == f"/maker/tiny-GGUF/resolve/{REVISION}/quants/tiny.gguf"
    assert request["authorization"] == "Bearer hf_secret"


def test_cached_file_is_used_without_the_network(store, make_entry, tmp_path, content):
    blob = fill_cache(tmp_path / "hf", content)
    done = pull_elsewhere(make_entry(SOURCE), store, tmp_path / "hf", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    path = store.path(make_entry())
    assert path.samefile(blob)
    assert not path.is_symlink()


def test_broken_cached_file_falls_through_to_the_server(server, store, make_entry, tmp_path, content):
    blob = fill_cache(tmp_path / "hf", content[:-1] + b"?")
    done = pull_elsewhere(make_entry(SOURCE), store, tmp_path / "hf", HF_ENDPOINT=server.url)
    assert done.returncode == 0, done.stderr
    assert store.path(make_entry()).read_bytes() == content
    assert blob.exists()


def test_download_that_was_interrupted_goes_on_at_the_next_pull(server, store, make_entry, tmp_path, content):
    entry = make_entry(SOURCE)
    # The connection breaks, and the token has run out when the rest is asked for.
    server.cuts, server.statuses = [1_000_003], [0, 401]
    first = pull_elsewhere(entry, store, tmp_path / "hf", HF_ENDPOINT=server.url)
    assert "set HF_TOKEN" in first.stderr
    assert store.installed_path(entry) is None
    second = pull_elsewhere(entry, store, tmp_path / "hf", HF_ENDPOINT=server.url)
    assert second.returncode == 0, second.stderr
    assert server.requests[-1]["range"] == "bytes=1000003-"
    assert store.path(entry).read_bytes() == content
    assert not store.staging_path(entry).exists()


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "GatedRepo", "its licence must be accepted"),
        (401, "RepoNotFound", "set HF_TOKEN"),
        (404, "EntryNotFound", "no longer has this file"),
        (403, "", "set HF_TOKEN to a token that may read it"),
    ],
)
def test_refusals_say_what_to_do(server, store, make_entry, tmp_path, status, code, remedy):
    server.status, server.headers = status, {"X-Error-Code": code}
    done = pull_elsewhere(make_entry(SOURCE), store, tmp_path / "hf", HF_ENDPOINT=server.url)
    assert done.returncode == 1
    assert "DownloadFailed" in done.stderr
    assert remedy in done.stderr
    assert not store.folder(make_entry()).exists()


def test_offline_is_said_at_once(store, make_entry, tmp_path):
    done = pull_elsewhere(make_entry(SOURCE), store, tmp_path / "hf", HF_HUB_OFFLINE="1")
    assert "the Hugging Face cache: not in the cache" in done.stderr
    assert "HF_HUB_OFFLINE is set" in done.stderr
