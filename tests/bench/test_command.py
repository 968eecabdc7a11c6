"""The command against a real HTTP server over a scripted engine: the whole way, with its exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.__main__ import main
from server.rig import Rig, make_rig, serve


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A step of 20 ms: the machine's own noise is small beside it."""
    with make_rig(step_s=0.02) as made:
        made.reply("hello world", ends=False)
        yield made


SHORT = ("--lengths", "8:6", "--clients", "2", "--requests", "16", "--warm-up", "1")


def test_a_run_writes_its_reports_and_a_slower_one_is_found_by_exit_code(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"r.{ending}") for ending in ("json", "html", "md")]
    with serve(rig) as server:
        outputs = ("--json", files[0], "--html", files[1], "--markdown", files[2])
        assert main(["bench", server.url, *SHORT, *outputs, "--save-baseline", "b"]) == 0
        rig.runner.step_s = 0.03
        assert main(["bench", server.url, *SHORT, "--compare", "b"]) == 1
    assert "slower" in capsys.readouterr().out
    (written,) = json.loads(Path(files[0]).read_text())
    (stage,) = written["stages"]
    assert (stage["name"], stage["num_requests"], stage["errors"]) == ("2 clients", 16, {})
    assert stage["percentiles"]["tpot"][0][0] == pytest.approx(0.02, rel=0.5)
    assert Path(files[1]).read_text().startswith("<!doctype html>")


def test_a_server_against_itself_in_turns_is_no_different(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(rig) as server:
        # The tolerance leaves room for a machine on which other things run.
        assert main(["bench", server.url, *SHORT, "--vs", server.url, "--tolerance", "25"]) == 0
    assert "no difference" in capsys.readouterr().out


def test_arrivals_do_not_wait_for_answers(rig: Rig, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    lines = [{"at_s": 0.01 * n, "prompt": "hi", "output_tokens": 10} for n in range(6)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "r.json"
    with serve(rig) as server:
        assert main(["bench", server.url, "--trace", str(trace), "--json", str(out)]) == 0
    (stage,) = json.loads(out.read_text())[0]["stages"]
    # Ten steps each: one after the other they would take 1.2 s.
    assert stage["is_open"]
    assert stage["wall_s"] < 1.0


def test_a_soak_ends_in_time_and_tells_of_failures(
    rig: Rig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serve(rig) as server:
        rig.runner.step_s = 0.001
        arguments = ["bench", server.url, "--soak", "2s", "--peak", "1", "--lengths", "4:3"]
        files = [tmp_path / name for name in ("soak.json", "soak.md", "soak.html")]
        main([*arguments, "--json", str(files[0]), "--markdown", str(files[1]), "--html", str(files[2])])
        assert "TTFT" in capsys.readouterr().out
        (written,) = json.loads(files[0].read_text())
        assert written["windows"][0]["num_errors"] == 0
        assert "- TTFT " in files[1].read_text()
        page = files[2].read_text()
        assert page.count("<svg") == 3
        assert "src=" not in page
        assert "href=" not in page
        rig.runner.error = RuntimeError("broken")
        assert main(arguments) == 1


def test_a_soak_in_turns_compares_the_two_servers_and_is_kept(
    rig: Rig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serve(rig) as server:
        soak = ["bench", server.url, "--soak", "1s", "--lengths", "4:3", "--tolerance", "200"]
        main([*soak, "--clients", "2", "--vs", server.url, "--save-baseline", "hour"])
        assert capsys.readouterr().out.count("over the run") in (0, 4)
        main([*soak, "--rate", "20", "--json", str(tmp_path / "soak.json")])
        main([*soak, "--peak", "2", "--compare", "hour"])
    out = capsys.readouterr().out
    assert "2 clients  ttft" in out
    assert "no difference" in out
    (written,) = json.loads((tmp_path / "soak.json").read_text())
    assert written["report"]["stages"][0]["name"] == "20 requests/s"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--soak", "1 day"], ["--clients", "0"], ["--clients", "x"], ["--rate", "-1"], ["--lengths", "9"],
        ["--compare", "never-kept"], ["--trace", "absent"], ["--trace", "t", "--rate", "2"],
        ["--vs", "http://127.0.0.1:9", "--compare", "b"], ["--soak", "1s", "--clients", "1,2"],
    ],
)  # fmt: skip
def test_bad_flags_are_named_before_anything_is_sent(
    rig: Rig, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(rig) as server:
        assert main(["bench", server.url, *arguments]) == 2
    assert rig.runner.num_steps == 0
    assert arguments[0].strip("-").replace("compare", "baseline") in capsys.readouterr().err


def test_an_address_without_a_server_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http://127.0.0.1:9"]) == 1
    assert "is a server there?" in capsys.readouterr().err
