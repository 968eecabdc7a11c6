"""The command as a whole: exit code, JSON, and an archive that gives nothing away."""

import json
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.__main__ import main
from appliance.observe.doctor.redaction import HIDDEN, Redaction
from tests.formats.gguf_builder import write_tiny_llama


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_tiny_llama(tmp_path / "tiny.gguf"))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_machine_that_can_serve_exits_with_zero(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", model, "--port", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[:-1]} <= {"pass", "warn", "->"}
    assert " 0 failed" in lines[-1]


def test_what_fails_sets_the_exit_code_and_has_a_remedy(
    model: str, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", model, "--json", "--port", str(taken_port)]) == 1
    findings = json.loads(capsys.readouterr().out)
    failed = [finding for finding in findings if finding["status"] == "fail"]
    assert [finding["name"] for finding in failed] == ["port"]
    assert all(finding["remedy"] for finding in findings if finding["status"] != "pass")


def test_a_bad_setting_is_a_finding_and_the_rest_is_still_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--json", "--port", "http"]) == 1
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["settings"]["status"] == "fail"
    assert "a whole number is needed" in findings["settings"]["summary"]
    assert "memory" in findings


def test_the_archive_holds_no_key_no_prompt_and_no_home(model: str, tmp_path: Path) -> None:
    log = tmp_path / "home/state/inference-appliance/log/appliance.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        f"loaded {tmp_path}/home/models/x.gguf\nAuthorization: Bearer abc.DEF-123\nkey s3cr3t-key\n"
        '{"prompt": "my diagnosis"}\nhf_abcdefghijklmnop\n'
        "the collector refused t3amk3y\n"
    )
    file = tmp_path / "b.zip"
    headers = ["--otlp-headers", "x-team=t3amk3y,x-env=pr0d"]
    main(["doctor", model, "--port", "0", "--api-key", "s3cr3t-key", *headers, "--bundle", str(file)])
    with zipfile.ZipFile(file) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert {"findings.json", "versions.txt", "settings.txt", "logs/appliance.log"} == set(texts)
    everything = "\n".join(texts.values())
    for secret in (
        "s3cr3t-key",
        "abc.DEF-123",
        "my diagnosis",
        "hf_abc",
        "t3amk3y",
        "pr0d",
        f"{tmp_path}/home",
    ):
        assert secret not in everything
    assert "~/models/x.gguf" in texts["logs/appliance.log"]
    assert file.stat().st_mode & 0o077 == 0


def test_an_archive_that_cannot_be_written_is_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", model, "--port", "0", "--bundle", str(tmp_path / "no" / "b.zip")]) == 9
    assert "name another --bundle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/ada/x and /home/adam", "~/x and /home/adam"),
        ("ada on box1 says", "[user] on [machine] says"),
        ("api_key=abc, port=1", f"{HIDDEN}, port=1"),
        ('"api-key": "abc"', f'"{HIDDEN}"'),
        ("TOKEN: abc", HIDDEN),
        ("12 tokens per second", "12 tokens per second"),
        ('{"messages": [1]}\nnext', "[a line with a request's words is left out]\nnext"),
    ],
)
def test_redaction_takes_out_what_is_private_and_leaves_the_rest(text: str, left: str) -> None:
    assert Redaction(home="/home/ada", user="ada", machine="box1").apply(text) == left
