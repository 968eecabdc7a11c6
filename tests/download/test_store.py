"""What counts as installed, what is digested when, and what removal may touch."""

import hashlib
import logging

import pytest

from appliance import paths
from appliance.download.pull import pull
from appliance.errors import BadModelFile


def digests_during(store, entry) -> int:
    """How many times `verify` reads the file."""
    calls: list[int] = []
    store.verify(entry, on_progress=calls.append)
    return len(calls)


def test_nothing_is_created_by_looking(store, make_entry):
    entry = make_entry()
    assert store.installed_path(entry) is None
    assert store.verify(entry) is None
    assert store.record(entry) is None
    assert not store.models_dir.exists()


def test_unchanged_file_is_not_digested_again(store, make_entry):
    entry = make_entry()
    pull(entry, store)
    assert digests_during(store, entry) == 0


def test_touched_file_is_digested_once_more(store, make_entry):
    entry = make_entry()
    path = pull(entry, store)
    path.touch()
    assert digests_during(store, entry) > 0
    assert digests_during(store, entry) == 0


def test_flipped_byte_is_found_and_both_digests_are_named(store, make_entry, content):
    entry = make_entry()
    path = pull(entry, store)
    broken = bytearray(content)
    broken[12345] ^= 1
    path.unlink()  # the store may share the bytes with the origin
    path.write_bytes(broken)
    with pytest.raises(BadModelFile) as caught:
        store.verify(entry)
    for digest in (hashlib.sha256(broken).hexdigest(), entry.sha256, "appliance pull tiny-model"):
        assert digest in caught.value.message


def test_short_file_is_never_listed(store, make_entry, content, caplog):
    entry = make_entry()
    store.folder(entry).mkdir(parents=True)
    store.path(entry).write_bytes(content[:-1])
    with caplog.at_level(logging.WARNING):
        assert store.installed_path(entry) is None
    assert "not a model" in caplog.text
    with pytest.raises(BadModelFile):
        store.verify(entry)


def test_file_put_there_by_hand_is_digested_and_then_known(store, make_entry, content):
    entry = make_entry(sha256=None)
    store.folder(entry).mkdir(parents=True)
    store.path(entry).write_bytes(content)
    assert store.verify(entry) == store.path(entry)
    assert store.wanted_sha256(entry) == hashlib.sha256(content).hexdigest()


def test_new_digest_in_the_catalogue_makes_the_old_file_wrong(store, make_entry):
    pull(make_entry(), store)
    with pytest.raises(BadModelFile, match="wanted are"):
        store.verify(make_entry(sha256="0" * 64))


def test_unreadable_record_only_costs_a_digest(store, make_entry):
    entry = make_entry()
    pull(entry, store)
    (store.folder(entry) / "record.json").write_text("{broken", encoding="utf-8")
    assert digests_during(store, entry) > 0


def test_linked_model_counts_and_a_broken_link_only_warns(store, make_entry, tmp_path, content, caplog):
    entry = make_entry()
    store.folder(entry).mkdir(parents=True)
    blob = tmp_path / "blob"
    store.path(entry).symlink_to(blob)
    with caplog.at_level(logging.WARNING):
        assert store.installed_path(entry) is None
    assert "leads nowhere" in caplog.text
    blob.write_bytes(content)
    assert store.verify(entry) == store.path(entry)


def test_removal_frees_the_folder_and_nothing_else(store, make_entry, content):
    entry = make_entry()
    pull(entry, store)
    neighbour = store.models_dir / "neighbour.gguf"
    neighbour.write_bytes(b"keep")
    prompts = paths.prompts_file(entry.model_id)
    prompts.parent.mkdir(parents=True, exist_ok=True)
    prompts.write_text("{}")
    assert store.remove(entry) >= len(content)
    assert not store.folder(entry).exists()
    assert not prompts.exists()
    assert neighbour.read_bytes() == b"keep"
    assert store.remove(entry) == 0


def test_removal_of_a_linked_folder_keeps_what_the_link_points_to(store, make_entry, tmp_path):
    entry = make_entry()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / entry.file).write_bytes(b"precious")
    store.models_dir.mkdir()
    store.folder(entry).symlink_to(outside)
    store.remove(entry)
    assert (outside / entry.file).read_bytes() == b"precious"
    assert not store.folder(entry).exists()
