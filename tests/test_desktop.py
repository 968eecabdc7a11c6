"""A start without a terminal: which browser opens, and what is shown where none does."""

import sys
from pathlib import Path

import pytest

from appliance import desktop, paths

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Python's own module opens pages")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, and a home of its own."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return folder


def add(folder: Path, name: str, *, exit_code: int = 0) -> Path:
    """A program that writes its last argument into the file returned."""
    shown = folder / f"{name}.shown"
    script = folder / name
    script.write_text(f'#!/bin/sh\nfor last; do :; done\nprintf %s "$last" > "{shown}"\nexit {exit_code}\n')
    script.chmod(0o755)
    return shown


def test_the_next_browser_is_tried_where_one_fails(programs: Path) -> None:
    failing, working = add(programs, "xdg-open", exit_code=3), add(programs, "firefox")
    desktop.open_page("http://127.0.0.1:11500", otherwise="no browser")
    assert failing.read_text() == working.read_text() == "http://127.0.0.1:11500"


def test_without_a_browser_the_address_is_shown_in_a_dialog(programs: Path) -> None:
    dialog = add(programs, "xmessage")
    desktop.open_page("http://127.0.0.1:11500", otherwise="look at http://127.0.0.1:11500")
    assert dialog.read_text() == "look at http://127.0.0.1:11500"


def test_a_failure_becomes_a_page_that_names_the_settings_file(programs: Path) -> None:
    opened = add(programs, "xdg-open")
    desktop.show_failure("port 11500 is taken by <another>")
    text = Path(opened.read_text().removeprefix("file://")).read_text("utf-8")
    assert "port 11500 is taken by &lt;another&gt;" in text
    assert str(paths.settings_file()) in text


def test_a_failure_on_a_full_or_closed_disk_becomes_a_dialog(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "taken" / "state"))
    dialog = add(programs, "kdialog")
    desktop.show_failure("the disk is full")
    assert dialog.read_text() == "the disk is full"


def test_a_start_from_source_is_no_double_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    assert not desktop.is_desktop_start()
