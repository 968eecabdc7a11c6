"""Model files of other programs, in their own layouts, found and used where they lie."""

import json
from pathlib import Path

import pytest

from appliance.catalog import Catalog, ModelFile
from appliance.download.local_models import find_local_model, find_local_models
from appliance.download.pull import ensure_model
from appliance.download.store import ModelStore
from appliance.errors import UnknownModel

DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HF_HUB_CACHE", "HF_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(path: Path, content: bytes | str = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def found(home: Path) -> dict[str, tuple[str, Path]]:
    return {model.name: (model.origin, model.path) for model in find_local_models(home / "models")}


def test_nothing_is_found_on_an_empty_machine(home: Path) -> None:
    assert found(home) == {}


def test_files_and_folders_dropped_into_the_models_folder_are_found(home: Path) -> None:
    models = home / "models"
    for name in ("mine.gguf", "Füße und 模型 .gguf", "sub/deep.gguf", "m-00001-of-00002.gguf"):
        write(models / name)
    for name in (
        ".hidden/no.gguf",
        "m-00002-of-00002.gguf",
        "mmproj-mine.gguf",
        "sub/sub/no.gguf",
        "empty/x.txt",
    ):
        write(models / name)
    write(models / "nothing.gguf", b"")
    write(models / "hf" / "config.json", "{}")
    write(models / "hf" / "model.safetensors", b"12345")
    (models / "dangling.gguf").symlink_to(home / "absent")
    (models / "loop.gguf").symlink_to("loop.gguf")
    names = {"mine", "Füße und 模型 ", "deep", "m-00001-of-00002", "hf"}
    assert found(home).keys() == names
    assert {m.name: m.size_bytes for m in find_local_models(models)}["hf"] == 5
    assert found(home)["hf"] == ("models folder", models / "hf")


def test_links_that_lead_to_no_file_are_skipped_with_a_warning(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = home / "models"
    write(models / "mine.gguf")
    (models / "dangling.gguf").symlink_to(home / "absent")
    (models / "loop.gguf").symlink_to("loop.gguf")
    assert found(home).keys() == {"mine"}
    warned = [record.message for record in caplog.records]
    assert len(warned) == 2
    assert all(any(name in line for line in warned) for name in ("dangling.gguf", "loop.gguf"))


def test_hugging_faces_cache_gives_the_snapshot_that_main_names(home: Path) -> None:
    repository = home / ".cache/huggingface/hub/models--Qwen--Qwen3-0.6B"
    for commit in ("a" * 40, "b" * 40):
        write(repository / "snapshots" / commit / "config.json", "{}")
    write(repository / "refs/main", "a" * 40)
    gguf = write(home / ".cache/huggingface/hub/models--x--y-GGUF/snapshots" / ("c" * 40) / "y.Q4_0.gguf")
    write(home / ".cache/huggingface/hub/datasets--x--d/snapshots/1/config.json", "{}")
    assert found(home) == {
        "Qwen/Qwen3-0.6B": ("Hugging Face", repository / "snapshots" / ("a" * 40)),
        "y.Q4_0": ("Hugging Face", gguf),
    }


def test_a_reference_that_leads_elsewhere_is_not_followed(home: Path) -> None:
    repository = home / ".cache/huggingface/hub/models--a--b"
    write(repository / "refs/main", "../../../../secret")
    write(home / ".cache/secret/config.json", "{}")
    assert found(home) == {}


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_a_cache_that_was_moved_is_found(home: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, str(home / "disk"))
    folder = home / "disk" / ("hub" if variable == "HF_HOME" else "")
    write(folder / "models--a--b" / "snapshots" / ("a" * 40) / "config.json", "{}")
    assert list(found(home)) == ["a/b"]


def write_ollama(home: Path, name: str, digest: object = DIGEST) -> Path:
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "00" * 32},
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest},
    ]
    manifest = home / ".ollama/models/manifests/registry.ollama.ai" / name
    write(manifest, json.dumps({"schemaVersion": 2, "layers": layers}))
    return home / ".ollama/models/blobs" / ("sha256-" + "ab" * 32)


def test_an_ollama_manifest_leads_to_its_blob(home: Path) -> None:
    blob = write(write_ollama(home, "library/llama3.2/1b"))
    write_ollama(home, "someone/tuned/latest")
    write_ollama(home, "library/gone/latest", "sha256:" + "cd" * 32)
    assert found(home) == {"llama3.2:1b": ("Ollama", blob), "someone/tuned:latest": ("Ollama", blob)}
    local = find_local_model("tuned", home / "models")
    assert local is not None
    assert local.as_file() == ModelFile(model_id="tuned:latest", path=blob)


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../../../x", "sha256:" + "ab" * 31, "sha256:" + "ab" * 33, "sha256:" + "AB" * 32,
        "sha512:" + "ab" * 32, "sha256:" + "ab" * 31 + "a\0", 7, None,
    ],
)  # fmt: skip
def test_a_malformed_digest_never_becomes_a_path(home: Path, digest: object) -> None:
    write(write_ollama(home, "library/evil/latest", digest))
    write(home / "x")
    assert found(home) == {}


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"layers": 3}', '{"layers": [3]}', "[" * 100_000, "\xff"]
)
def test_a_broken_manifest_is_passed_over(home: Path, content: str) -> None:
    write(home / ".ollama/models/manifests/registry.ollama.ai/library/bad/latest", content)
    write(write_ollama(home, "library/good/latest"))
    assert list(found(home)) == ["good:latest"]


def test_lm_studios_folders_are_found(home: Path) -> None:
    new = write(home / ".lmstudio/models/org/repo/m.Q8_0.gguf")
    old = write(home / ".cache/lm-studio/models/org/old/o.gguf")
    write(home / ".lmstudio/models/org/st/config.json", "{}")
    assert found(home) == {
        "m.Q8_0": ("LM Studio", new),
        "org/st": ("LM Studio", home / ".lmstudio/models/org/st"),
        "o": ("LM Studio", old),
    }


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "qwen3-0.6b"])
def test_a_found_model_is_served_where_it_lies(home: Path, name: str) -> None:
    snapshot = home / ".cache/huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots" / ("a" * 40)
    write(snapshot / "config.json", "{}")
    model = ensure_model(name, Catalog((), folder=home), ModelStore(home / "models"))
    assert model == ModelFile(model_id="Qwen3-0.6B", path=snapshot)
    assert not (home / "models").exists()


def test_a_name_that_nothing_has_stays_unknown(home: Path) -> None:
    write(home / "models/mine.gguf")
    with pytest.raises(UnknownModel, match="'yours'"):
        ensure_model("yours", Catalog((), folder=home), ModelStore(home / "models"))
