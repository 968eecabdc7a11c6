"""The commands on a real store: text, JSON, exit codes, and what importing them costs."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from appliance import paths
from appliance.commands import models
from appliance.download.pull import pull
from appliance.errors import BadModelFile, UnknownModel

CONFIGURE = {
    models.pull: models.configure_pull,
    models.list_models: models.configure_list,
    models.show: models.configure_show,
    models.remove: models.configure_remove,
}
TABLE = """
["tiny-model"]
name = "Tiny"
description = "for tests"
architecture = "llama"
parameters = 1_234_000_000
context = 128
licence = "Apache-2.0"
file = "tiny.gguf"
size = {size}
sha256 = "{sha256}"
[["tiny-model".sources]]
kind = "file"
path = "origin.gguf"
"""


@pytest.fixture(autouse=True)
def own_catalogue(tmp_path, make_entry, monkeypatch):
    """A bundle of one model, and no settings of whoever runs the tests."""
    entry = make_entry()
    table = TABLE.format(size=entry.size_bytes, sha256=entry.sha256)
    (tmp_path / "models.toml").write_text(table, encoding="utf-8")
    monkeypatch.setattr(sys, "_MEIPASS", str(tmp_path), raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("APPLIANCE_MODELS_DIR", raising=False)


def run(command, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    CONFIGURE[command](parser)
    return command(parser.parse_args(arguments))


def test_pull_list_and_remove_go_together(store, capsys):
    place = f"--models-dir={store.models_dir}"
    assert run(models.pull, "TINY-model", place) == 0
    out, err = capsys.readouterr()
    assert str(store.models_dir / "tiny-model" / "tiny.gguf") in out
    assert "verifying" in err
    assert run(models.list_models, place) == 0
    assert "tiny-model  1.2B        3 MB  Apache-2.0  yes        -" in capsys.readouterr().out
    assert run(models.remove, "tiny-model", "--yes", place) == 0
    assert "3 MB freed" in capsys.readouterr().out
    assert run(models.list_models, place) == 0
    assert "tiny-model  1.2B        3 MB  Apache-2.0  -          -" in capsys.readouterr().out


def test_store_follows_the_data_folder_without_a_flag(tmp_path, capsys):
    assert run(models.pull, "tiny-model") == 0
    assert str(tmp_path / "data" / paths.APP_NAME / "models") in capsys.readouterr().out


def test_list_as_json_says_what_is_installed_and_what_else_is_there(store, make_entry, capsys):
    pull(make_entry(), store)
    loose = store.models_dir / "mine.gguf"
    loose.write_bytes(b"x")
    assert run(models.list_models, "--json", "--installed", f"--models-dir={store.models_dir}") == 0
    listing = json.loads(capsys.readouterr().out)
    (model,) = listing["models"]
    assert (model["id"], model["installed"], model["verified"]) == ("tiny-model", True, False)
    assert model["sources"] == [{"kind": "file", "path": "origin.gguf"}]
    assert listing["local"] == [{"name": "mine", "path": str(loose), "origin": "models folder", "size": 1}]


def test_list_of_installed_models_leaves_the_others_out(store, capsys):
    assert run(models.list_models, "--json", "--installed", f"--models-dir={store.models_dir}") == 0
    assert json.loads(capsys.readouterr().out) == {"models": [], "local": []}
    assert not store.models_dir.exists()


def test_show_prints_the_path_even_before_the_pull(store, capsys):
    assert run(models.show, "tiny-model", f"--models-dir={store.models_dir}") == 0
    out = capsys.readouterr().out
    assert f"path: {store.models_dir / 'tiny-model' / 'tiny.gguf'}" in out
    assert "installed: False" in out


def test_show_reads_the_files_own_metadata(tmp_path, capsys):
    path = tmp_path / "real.gguf"
    write_gguf(path)
    assert run(models.show, str(path), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["id"] == "real"
    assert facts["metadata"]["general.architecture"] == "llama"
    assert facts["metadata"]["test.list"] == "3 values"
    assert facts["tensors"] == {"F32": 1}
    assert run(models.show, str(path)) == 0
    assert "  general.architecture: llama" in capsys.readouterr().out


def test_show_of_a_foreign_file_says_so(tmp_path):
    with pytest.raises(BadModelFile):
        run(models.show, str(tmp_path / "origin.gguf"))


def test_remove_without_a_terminal_wants_to_be_told(store, make_entry, capsys, monkeypatch):
    pull(make_entry(), store)
    monkeypatch.setattr("sys.stdin", (store.models_dir / ".tiny-model.lock").open(encoding="utf-8"))
    with sys.stdin:
        assert run(models.remove, "tiny-model", f"--models-dir={store.models_dir}") == models.EXIT_DECLINED
    assert "--yes deletes without asking" in capsys.readouterr().err
    assert store.installed_path(make_entry()) is not None


def test_remove_of_what_is_not_installed_has_its_own_code(store, capsys):
    place = f"--models-dir={store.models_dir}"
    assert run(models.remove, "tiny-model", "--yes", place) == models.EXIT_NOT_INSTALLED
    assert "not installed" in capsys.readouterr().err


def test_nothing_is_pulled_when_one_name_is_unknown(store):
    with pytest.raises(UnknownModel):
        run(models.pull, "tiny-model", "tiny-modle", f"--models-dir={store.models_dir}")
    assert not store.models_dir.exists()


def test_pull_again_fetches_again(store, make_entry, capsys):
    pull(make_entry(), store)
    assert run(models.pull, "--again", "tiny-model", f"--models-dir={store.models_dir}") == 0
    assert "verifying" in capsys.readouterr().err


def test_sizes_are_decimal():
    assert [models.human_bytes(n) for n in (98_362_432, 999_999_999, 8_709_518_112)] == [
        "98 MB",
        "1000 MB",
        "8.7 GB",
    ]


def test_importing_the_commands_loads_nothing_heavy():
    heavy = ("torch", "rich", "numpy", "msgspec", "httpx", "huggingface_hub")
    code = f"import sys, appliance.commands.models; print([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def write_gguf(path: Path) -> None:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("test.list", [1, 2, 3])
    writer.add_tensor("token_embd.weight", np.zeros((3, 5), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
