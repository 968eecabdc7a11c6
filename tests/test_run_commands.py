"""ps, stop and the chat of run against a running appliance with scripted models."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.__main__ import main
from appliance.commands.chat import Chat
from appliance.server.http_server import HttpServer
from appliance.server.listener import bind
from server.rig import wait_for
from server.shelf import Shelf, make_shelf


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with make_shelf("red", "blue") as made:
        yield made


@pytest.fixture
def url(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    server = HttpServer(shelf.app(), bind("127.0.0.1", 0), state=shelf.state)
    server.start()
    yield server.url
    server.stop(grace_s=0.5)


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_chat_goes_to_the_running_appliance_and_loads_the_model_there(
    shelf: Shelf, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "hello", "", "and again", "/bye", "never asked")
    assert main(["run", "blue", "--url", url]) == 0
    assert capsys.readouterr().out == "blue\nblue\n"
    assert shelf.loads == ["blue"]


def test_the_default_address_is_that_of_the_settings(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APPLIANCE_PORT", url.rpartition(":")[2])
    say(monkeypatch, "hello")
    assert main(["run", "red"]) == 0
    assert capsys.readouterr().out == "red\n"


def test_ps_lists_what_is_loaded_and_stop_unloads_it(
    shelf: Shelf, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "hello")
    main(["run", "red", "--url", url])
    capsys.readouterr()
    assert main(["ps", "--url", url]) == 0
    listed = capsys.readouterr().out
    assert "red" in listed
    assert "blue" not in listed
    assert main(["stop", "red", "--url", url]) == 0
    wait_for(lambda: not shelf.alive)
    assert main(["stop", "nothing", "--url", url]) == 4
    assert main(["run", "nothing", "--url", url]) == 4


def test_nothing_at_the_address_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    for arguments in (["ps"], ["stop", "red"], ["run", "red"]):
        assert main([*arguments, "--url", f"127.0.0.1:{port}"]) == 1
        assert "appliance serve" in capsys.readouterr().err


def test_an_interrupted_answer_is_kept_and_the_chat_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[dict[str, str]]] = []

    def speaker(messages: object) -> Iterator[str]:
        seen.append(list(messages))  # type: ignore[call-overload]
        yield "half"
        if len(seen) == 1:
            raise KeyboardInterrupt
        yield " whole"

    say(monkeypatch, "one", "two", "/clear", "three")
    assert Chat(speaker, system="brief", is_terminal=False).run() == 0
    assert capsys.readouterr().out == "half ...\nhalf whole\nhalf whole\n"
    system = {"role": "system", "content": "brief"}
    assert seen[1] == [
        system,
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "half"},
        {"role": "user", "content": "two"},
    ]
    assert seen[2] == [system, {"role": "user", "content": "three"}]
