"""The shipped catalogue is sound, names find their models, and nothing else does."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.catalog import Catalog, HubSource, ModelEntry, ModelFile, WheelSource, is_name, resolve_model
from appliance.config import Settings
from appliance.errors import BadModelFile, BadSetting, UnknownModel

ENTRY = """
["tiny"]
name = "Tiny"
description = "d"
architecture = "llama"
parameters = 1
context = 1
licence = "MIT"
file = "tiny.gguf"
size = 1
[["tiny".sources]]
kind = "file"
path = "x.gguf"
"""
SOURCE = 'kind = "file"\npath = "x.gguf"'


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog.load()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "models.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_default_model_is_first_and_comes_from_a_pinned_wheel(catalog):
    entry = catalog.entries[0]
    assert entry.model_id == Settings().model
    assert isinstance(entry.sources[0], WheelSource)
    assert entry.is_verified
    assert entry.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_gemma_is_joined_from_four_wheels_in_order(catalog):
    (source,) = catalog.find("gemma-3-270m").sources
    assert isinstance(source, WheelSource)
    assert [part[-6:] for part in source.parts] == ["part00", "part01", "part02", "part03"]
    assert len(source.requirements) == 4


@pytest.mark.parametrize("entry", Catalog.load().entries, ids=lambda e: e.model_id)
def test_every_entry_is_complete(entry):
    assert entry.file.endswith(".gguf")
    assert len(entry.description) <= 80
    # A quantized file holds between half a byte and a little over two bytes for a parameter.
    assert 0.5 < entry.size_bytes / entry.num_parameters < 2.2
    for source in entry.sources:
        if isinstance(source, HubSource):
            assert source.revision == "main" or re.fullmatch(r"[0-9a-f]{40}", source.revision)
            assert source.file.rsplit("/", 1)[-1] == entry.file


def test_names_are_found_by_id_and_alias_in_any_case(catalog):
    for entry in catalog.entries:
        for name in (entry.model_id, *entry.aliases):
            assert catalog.find(name) is entry
            assert catalog.find(name.upper()) is entry


def test_unknown_name_is_answered_with_the_nearest(catalog):
    with pytest.raises(UnknownModel) as caught:
        catalog.find("qwen3-06b")
    assert caught.value.nearest[0] == "qwen3-0.6b"
    assert "did you mean qwen3-0.6b" in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "a/../../b",
        "/abs",
        "C:\\x",
        "a%2f..%2fb",
        "a\0b",
        "con",
        "n" * 300,
        ".",
        "",
        "tiny\n",
    ],
)
def test_names_that_would_leave_the_store_are_unknown(catalog, name):
    with pytest.raises(UnknownModel) as caught:
        catalog.find(name)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 250


@given(st.text(max_size=120))
def test_a_name_never_reaches_outside_its_folder(text):
    if is_name(text):
        assert not set(text) & set("/\\\0\n \t%~$")
        assert not text.startswith(".")
        assert len(text) <= 100


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("size = 1", 'size = "big"', r"'tiny'.*Expected `int`.*\$\.size"),
        ("size = 1", "size = 0", r"\$\.size"),
        ('licence = "MIT"', "", "missing required field `licence`"),
        ('licence = "MIT"', 'licence = "MIT"\ncolour = "red"', "unknown field `colour`"),
        ('file = "tiny.gguf"', 'file = "../tiny.gguf"', r"\$\.file"),
        ("size = 1", 'size = 1\nsha256 = "ABC"', r"\$\.sha256"),
        ('kind = "file"', 'kind = "ftp"', "ftp"),
        (SOURCE, 'kind = "wheel"\nrequirements = ["--index-url=x"]\nparts = ["a"]', "requirements"),
        (SOURCE, 'kind = "wheel"\nrequirements = ["a"]\nparts = ["a"]', "requirements"),
        (SOURCE, 'kind = "wheel"\nrequirements = ["a==1"]\nparts = ["a/../b"]', "parts"),
        (SOURCE, 'kind = "wheel"\nrequirements = ["a==1"]\nparts = []', "parts"),
        (SOURCE, 'kind = "hf"\nrepository = "a"\nfile = "b"', "repository"),
        ('"tiny"', '"../tiny"', r"\$\.id"),
        ('"tiny"', '"con"', "device name"),
        ("size = 1", "size = ", "cannot be read"),
    ],
)
def test_broken_catalogue_names_the_table_and_the_field(tmp_path, old, new, complaint):
    with pytest.raises(BadSetting, match=f"(?s){complaint}"):
        Catalog.load(write(tmp_path, ENTRY.replace(old, new)))


def test_two_models_cannot_share_a_name(tmp_path):
    second = ENTRY.replace('"tiny"', '"other"').replace("size = 1", 'size = 1\naliases = ["TINY"]')
    with pytest.raises(BadSetting, match="names both 'tiny' and 'other'"):
        Catalog.load(write(tmp_path, ENTRY + second))


def test_absent_catalogue_is_named(tmp_path):
    with pytest.raises(BadSetting, match=r"nowhere\.toml"):
        Catalog.load(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    "name", ["m.gguf", "mein Modell ü.gguf", "模型/м о д.gguf", 'it\'s "so"\n.gguf', "MODEL.GGUF"]
)
def test_path_is_a_file_whatever_its_letters(catalog, tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    assert resolve_model(str(path), catalog) == ModelFile(model_id=path.stem, path=path)


def test_file_name_of_arbitrary_bytes_gives_an_id_of_valid_text(catalog, tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.gguf")
    path.write_bytes(b"x")
    found = resolve_model(str(path), catalog)
    assert isinstance(found, ModelFile)
    assert found.model_id.encode() == "caf\ufffd".encode()


def test_link_keeps_its_own_name_and_folder(catalog, tmp_path):
    blob = tmp_path / "blobs" / "0123abcd"
    blob.parent.mkdir()
    blob.write_bytes(b"x")
    link = tmp_path / "snapshots" / "tiny.gguf"
    link.parent.mkdir()
    link.symlink_to("../blobs/0123abcd")
    assert resolve_model(str(link), catalog) == ModelFile(model_id="tiny", path=link)


@pytest.mark.parametrize("target", ["absent", "loop.gguf"])
def test_link_that_leads_nowhere_does_not_exist(catalog, tmp_path, target):
    (tmp_path / "loop.gguf").symlink_to(target)
    with pytest.raises(UnknownModel):
        resolve_model(str(tmp_path / "loop.gguf"), catalog)


def test_absent_file_is_answered_with_its_neighbours(catalog, tmp_path):
    (tmp_path / "llama-3.gguf").write_bytes(b"x")
    with pytest.raises(UnknownModel, match=r"did you mean .*llama-3\.gguf"):
        resolve_model(str(tmp_path / "llama3.gguf"), catalog)


def test_folder_with_one_model_is_that_model(catalog, tmp_path):
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-m.gguf"):
        (tmp_path / name).write_bytes(b"x")
    first = tmp_path / "m-00001-of-00002.gguf"
    assert resolve_model(str(tmp_path), catalog) == ModelFile(model_id=first.stem, path=first)


def test_folder_with_a_configuration_is_a_model_itself(catalog, tmp_path, monkeypatch):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    expected = ModelFile(model_id="my-model", path=folder)
    assert resolve_model(str(folder), catalog) == expected
    monkeypatch.chdir(tmp_path)
    assert resolve_model("my-model", catalog) == expected


def test_folder_is_answered_with_the_files_in_it(catalog, tmp_path):
    with pytest.raises(BadModelFile, match=r"holds no \.gguf file and no config\.json"):
        resolve_model(str(tmp_path), catalog)
    (tmp_path / "a.gguf").write_bytes(b"x")
    (tmp_path / "b.gguf").write_bytes(b"x")
    with pytest.raises(BadModelFile, match=r"such as a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path), catalog)


@pytest.mark.parametrize("path", ["/" + "x" * 4000 + ".gguf", "a\0b.gguf", "/dev/null/x.gguf"])
def test_impossible_paths_are_refused_in_one_printable_line(catalog, path):
    with pytest.raises((UnknownModel, BadModelFile)) as caught:
        resolve_model(path, catalog)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


def test_catalogue_name_comes_before_a_file_of_that_name(catalog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("smollm2").write_bytes(b"x")
    Path("mine").write_bytes(b"x")
    assert isinstance(resolve_model("smollm2", catalog), ModelEntry)
    assert resolve_model("./smollm2", catalog) == ModelFile(model_id="smollm2", path=tmp_path / "smollm2")
    assert resolve_model("mine", catalog) == ModelFile(model_id="mine", path=tmp_path / "mine")


def test_home_is_expanded(catalog, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"x")
    assert resolve_model("~/m.gguf", catalog) == ModelFile(model_id="m", path=tmp_path / "m.gguf")
