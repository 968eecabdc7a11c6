"""The whole pull on real files: fall-through, verification, interruption, two at once, no room."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from appliance.catalog import Catalog, FileSource, ModelFile
from appliance.download.pull import ensure_model, pull
from appliance.download.store import ModelStore
from appliance.download.workspace import PullPhase, PullProgress
from appliance.errors import DownloadFailed, StorageNotWritable, UnknownModel


def leftovers(store: ModelStore) -> list[str]:
    """Everything in the store but locks."""
    return sorted(
        str(p.relative_to(store.models_dir)) for p in store.models_dir.rglob("*") if p.suffix != ".lock"
    )


def test_pulled_model_lies_in_its_folder_with_its_record(store, make_entry, content):
    path = pull(make_entry(), store)
    assert path == store.models_dir / "tiny-model" / "tiny.gguf"
    assert path.read_bytes() == content
    assert leftovers(store) == ["tiny-model", "tiny-model/record.json", "tiny-model/tiny.gguf"]


def test_second_pull_fetches_nothing(store, make_entry):
    pull(make_entry(), store)
    phases: list[PullPhase] = []
    pull(make_entry(), store, lambda p: phases.append(p.phase))
    assert phases == [PullPhase.INSTALLED]


def test_pull_again_replaces_a_broken_file(store, make_entry, content):
    path = pull(make_entry(), store)
    path.unlink()
    path.write_bytes(b"rotten")
    assert pull(make_entry(), store).read_bytes() == content


def test_sources_fall_through_and_the_first_good_one_wins(store, make_entry, tmp_path, content):
    good = tmp_path / "origin.gguf"
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"\0" * len(content))
    sources = [FileSource(path=str(p)) for p in (tmp_path / "absent", wrong, good)]
    assert pull(make_entry(*sources), store).read_bytes() == content


def test_failure_names_every_source_and_its_reason(store, make_entry, tmp_path, content):
    flipped = bytearray(content)
    flipped[-1] ^= 1
    bad = {
        "empty.gguf": b"",
        "short.gguf": content[:-1],
        "long.gguf": content + b"x",
        "flipped.gguf": bytes(flipped),
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
    sources = [FileSource(path=name) for name in ("absent.gguf", *bad)]
    with pytest.raises(DownloadFailed) as caught:
        pull(make_entry(*sources), store, folder=tmp_path)
    message = caught.value.message
    for expected in (
        "absent.gguf: there is no such file",
        "it has 0 bytes",
        f"it has {len(content) - 1} bytes",
    ):
        assert expected in message
    assert hashlib.sha256(flipped).hexdigest() in message
    assert leftovers(store) == []


def test_first_digest_is_recorded_and_held_to(store, make_entry, tmp_path, content):
    entry = make_entry(sha256=None)
    pull(entry, store)
    assert store.wanted_sha256(entry) == hashlib.sha256(content).hexdigest()
    other = tmp_path / "other.gguf"
    other.write_bytes(bytes(reversed(content)))
    with pytest.raises(DownloadFailed, match="and the model " + hashlib.sha256(content).hexdigest()):
        pull(make_entry(FileSource(path=str(other)), sha256=None), store, again=True)
    assert store.path(entry).read_bytes() == content


def test_interrupted_pull_leaves_nothing_that_looks_like_a_model(store, make_entry):
    def interrupt(progress: PullProgress) -> None:
        if progress.phase is PullPhase.VERIFYING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(make_entry(), store, interrupt)
    assert leftovers(store) == []


def test_model_that_cannot_fit_is_refused_before_anything_is_fetched(store, make_entry):
    phases: list[PullPhase] = []
    with pytest.raises(StorageNotWritable) as caught:
        pull(make_entry(size_bytes=10**18), store, lambda p: phases.append(p.phase))
    assert f"needs {10**18 + 16 * 2**20} bytes there and" in caught.value.message
    assert "--models-dir" in caught.value.message
    assert phases == []
    assert leftovers(store) == []


def test_disk_that_fills_up_on_the_way_is_named(store, make_entry):
    def fill_up(progress: PullProgress) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StorageNotWritable, match="the disk is full, and tiny-model needs"):
        pull(make_entry(), store, fill_up)
    assert leftovers(store) == []


def test_store_that_is_a_file_is_named_with_the_remedy(make_entry, tmp_path):
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with pytest.raises(StorageNotWritable, match="XDG_DATA_HOME"):
        pull(make_entry(), ModelStore(tmp_path / "file" / "models"))


def test_installed_model_on_a_read_only_store_needs_no_writing(store, make_entry, monkeypatch):
    entry = make_entry()
    pull(entry, store)
    (store.models_dir / ".tiny-model.lock").unlink()
    pull(entry, store)
    assert not (store.models_dir / ".tiny-model.lock").exists()


def test_two_pulls_at_once_fetch_once(store, make_entry):
    waiting = threading.Event()
    verified: set[int] = set()

    def report(progress: PullProgress) -> None:
        if progress.phase is PullPhase.WAITING:
            waiting.set()
        if progress.phase is PullPhase.VERIFYING:
            verified.add(threading.get_ident())
            # The first stays in the middle of its work until the second has met it there.
            assert waiting.wait(10)

    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: pull(make_entry(), store, report), range(2)))
    assert paths == [store.path(make_entry())] * 2
    assert len(verified) == 1


KILLED_PULL = """
import sys, time
from pathlib import Path
import msgspec
from appliance.catalog import ModelEntry
from appliance.download.pull import pull
from appliance.download.store import ModelStore
from appliance.download.workspace import PullPhase

def report(progress):
    if progress.phase is PullPhase.VERIFYING:
        print("verifying", flush=True)
        time.sleep(60)

entry = msgspec.json.decode(sys.argv[1], type=ModelEntry)
pull(entry, ModelStore(Path(sys.argv[2])), report)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_pull_lists_nothing_and_the_next_one_works(store, make_entry, content, how):
    entry = make_entry()
    arguments = [
        sys.executable,
        "-c",
        KILLED_PULL,
        msgspec.json.encode(entry).decode(),
        str(store.models_dir),
    ]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"verifying\n"
        process.send_signal(how)
        assert process.wait(10) != 0
    assert store.installed_path(entry) is None
    assert not list(store.models_dir.rglob("*.gguf"))
    assert pull(entry, store).read_bytes() == content
    assert leftovers(store) == ["tiny-model", "tiny-model/record.json", "tiny-model/tiny.gguf"]


def test_named_model_is_fetched_when_it_is_missing(store, make_entry, tmp_path):
    catalog = Catalog((make_entry(),), folder=tmp_path)
    found = ensure_model("TINY-model", catalog, store)
    assert found == ModelFile(model_id="tiny-model", path=store.path(make_entry()), entry=make_entry())


def test_own_file_touches_no_store(make_entry, tmp_path):
    (tmp_path / "taken").write_text("", encoding="utf-8")
    unusable = ModelStore(tmp_path / "taken" / "models")
    found = ensure_model(str(tmp_path / "origin.gguf"), Catalog((make_entry(),), folder=tmp_path), unusable)
    assert found.model_id == "origin"
    assert found.entry is None


def test_unknown_name_touches_no_store(store, make_entry, tmp_path):
    with pytest.raises(UnknownModel, match="tiny-model"):
        ensure_model("tiny-modle", Catalog((make_entry(),), folder=tmp_path), store)
    assert not store.models_dir.exists()
