"""The first start tells where things are and what fits; later ones do not repeat it."""

from pathlib import Path

import pytest

from appliance.catalog import Catalog
from appliance.config import Settings
from appliance.first_run import fits, welcome


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def test_the_first_start_names_folders_and_models_that_fit(tmp_path: Path) -> None:
    lines = welcome(Settings(models_dir=tmp_path / "models"), Catalog.load(), 8 * 10**9)
    assert str(tmp_path / "models") in lines[0]
    assert "settings.toml" in lines[1]
    offered = [line.split()[0] for line in lines[3:]]
    assert offered
    assert all(fits(Catalog.load().find(name), 8 * 10**9) for name in offered)


def test_a_log_file_is_named_where_there_is_one(tmp_path: Path) -> None:
    said = welcome(Settings(), Catalog.load(), 8 * 10**9, log_file=tmp_path / "own.log")
    assert any(str(tmp_path / "own.log") in line for line in said)


def test_without_a_log_file_none_is_named() -> None:
    assert not any("the log" in line for line in welcome(Settings(), Catalog.load(), 10**9))


def test_later_starts_say_nothing() -> None:
    welcome(Settings(), Catalog.load(), 8 * 10**9)
    assert welcome(Settings(), Catalog.load(), 8 * 10**9) == []


def test_a_machine_too_small_for_all_is_offered_none() -> None:
    assert len(welcome(Settings(), Catalog.load(), 10**9)) == 2
