"""Folders: where they are, that looking creates nothing, and what is said when one cannot be written."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from appliance import paths
from appliance.catalog import Catalog
from appliance.errors import BadSetting, StorageNotWritable

FOLDERS = (paths.data_dir, paths.cache_dir, paths.config_dir, paths.state_dir, paths.log_dir)


def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME and without an account entry, as in many containers."""

    def absent(_user: int) -> None:
        raise KeyError("no such user")

    for variable in ("HOME", *(v for v in os.environ if v.startswith("XDG_"))):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", absent)


def test_importing_and_asking_creates_nothing(tmp_path):
    names = ("data_dir", "log_dir", "settings_file", "models_dir")
    code = f"from appliance import paths; print(*(getattr(paths, n)() for n in {names}))"
    environment = {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1]), "PATH": os.defpath}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.count(str(tmp_path)) == 4
    assert list(tmp_path.iterdir()) == []


def test_xdg_variables_are_honoured(tmp_path, monkeypatch):
    for kind in ("DATA", "CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    assert paths.data_dir() == tmp_path / "DATA" / paths.APP_NAME
    assert paths.cache_dir() == tmp_path / "CACHE" / paths.APP_NAME
    assert paths.settings_file() == tmp_path / "CONFIG" / paths.APP_NAME / "settings.toml"
    assert paths.log_dir().is_relative_to(tmp_path / "STATE" / paths.APP_NAME)


def test_models_folder_follows_the_setting(tmp_path, monkeypatch):
    assert paths.models_dir() == paths.data_dir() / "models"
    monkeypatch.chdir(tmp_path)
    assert paths.models_dir(Path("my models")) == tmp_path / "my models"


def test_user_without_a_home_gets_absolute_folders_that_do_not_exist(monkeypatch):
    no_home(monkeypatch)
    for folder in FOLDERS:
        assert folder().is_absolute()
        assert "~" not in str(folder())
        assert not folder().exists()


def test_user_without_a_home_is_told_so_when_something_must_be_written(monkeypatch):
    no_home(monkeypatch)
    with pytest.raises(StorageNotWritable, match=r"HOME is not set.*--models-dir or XDG_DATA_HOME"):
        paths.ensure_writable(paths.models_dir())
    assert not paths.NO_HOME.exists()


def test_tilde_of_a_user_without_a_home_stays(monkeypatch):
    no_home(monkeypatch)
    assert paths.expand_home(Path("~/m.gguf")) == Path("~/m.gguf")


def test_folder_is_made_on_demand_and_left_empty(tmp_path):
    folder = tmp_path / "a b" / "Füße"
    assert paths.ensure_writable(folder) == folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/below"])
def test_folder_that_cannot_be_made_is_named_with_reason_and_remedy(place):
    with pytest.raises(StorageNotWritable) as caught:
        paths.ensure_writable(Path(place))
    assert place in caught.value.message
    assert "set --models-dir" in caught.value.message


def test_existing_folder_in_which_nothing_can_be_made_is_refused():
    with pytest.raises(StorageNotWritable, match="/proc/self"):
        paths.ensure_writable(Path("/proc/self"))


def test_checkout_has_its_catalogue_at_the_top():
    assert paths.catalogue_file() == Path(__file__).parents[1] / "models.toml"


def test_packaged_executable_finds_its_own_catalogue(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "_MEIPASS", str(tmp_path), raising=False)
    (tmp_path / "models.toml").write_text("", encoding="utf-8")
    assert paths.resource_root() == tmp_path
    assert paths.catalogue_file() == tmp_path / "models.toml"


def test_incomplete_installation_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "_MEIPASS", str(tmp_path), raising=False)
    monkeypatch.setattr(paths, "APP_NAME", "no-such-distribution")
    with pytest.raises(FileNotFoundError, match="reinstall"):
        paths.catalogue_file()
    with pytest.raises(BadSetting, match=r"the catalogue models\.toml cannot be read"):
        Catalog.load()


def test_catalogue_of_a_wheel_in_a_target_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "_MEIPASS", str(tmp_path), raising=False)
    shared = tmp_path / "share" / paths.APP_NAME / "models.toml"
    shared.parent.mkdir(parents=True)
    shared.write_text("", encoding="utf-8")
    monkeypatch.setattr(paths, "_recorded_catalogue", list)
    assert paths.catalogue_file() == shared
