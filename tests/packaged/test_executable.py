"""The built file, as a person has it: no Python, no source tree, an environment with nothing in it."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from packaged.running import READY_S, answer, environment, get, post, run, serving, wait_for

COMMANDS = (
    *("serve", "run", "eval", "calibrate", "pull", "list", "show", "rm", "ps", "stop", "key", "dashboard"),
    *("bench", "profile", "doctor", "service", "self-check", "version"),
)


def test_the_version_needs_no_unpacking(executable: Path, tmp_path: Path) -> None:
    result = run(executable, "--version", home=tmp_path)
    assert result.stdout.strip().count(".") == 2
    assert list(tmp_path.iterdir()) == []


def test_the_first_start_in_an_empty_home_answers_offline(executable: Path, tmp_path: Path) -> None:
    with serving(executable, tmp_path) as (url, process):
        wait_for(f"{url}/health", process)
        assert "Paris" in answer(url)
    trees = [path for path in (tmp_path / ".cache/inference-appliance/app").iterdir() if path.is_dir()]
    assert len(trees) == 1


def test_a_folder_with_spaces_and_other_letters_works(executable: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Bücher & наука"
    folder.mkdir()
    os.link(executable, folder / "mein Programm")
    result = run(folder / "mein Programm", "version", home=tmp_path, unpack_to=folder / "app")
    assert result.stdout.startswith("inference-appliance"), result.stderr


def test_two_first_starts_at_once_both_work(executable: Path, tmp_path: Path) -> None:
    command = [str(executable), "version"]
    both = [
        subprocess.Popen(
            command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in both:
        out, problem = process.communicate(timeout=READY_S)
        assert out.startswith("inference-appliance"), problem


def test_a_folder_that_cannot_be_made_is_named_with_the_remedy(executable: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    result = run(executable, "version", home=tmp_path, unpack_to=tmp_path / "taken" / "app")
    assert result.returncode == 9
    assert str(tmp_path / "taken") in result.stderr
    assert "--unpack-to" in result.stderr


def test_a_cut_download_says_so(executable: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    with executable.open("rb") as source:
        cut.write_bytes(source.read(10_000_000))
    cut.chmod(0o755)
    result = run(cut, "version", home=tmp_path)
    assert result.returncode == 5
    assert "download it again" in result.stderr


def test_a_damaged_payload_says_so_and_leaves_nothing(executable: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copyfile(executable, damaged)
    damaged.chmod(0o755)
    with damaged.open("r+b") as file:
        file.seek(40_000_000)
        file.write(b"\0" * 64)
    result = run(damaged, "version", home=tmp_path, unpack_to=tmp_path / "app")
    assert result.returncode == 5
    assert "damaged" in result.stderr
    assert [path for path in (tmp_path / "app").iterdir() if path.is_dir()] == []


def test_another_version_is_removed_unless_it_runs(executable: Path, tmp_path: Path) -> None:
    app = tmp_path / "app"
    idle, running = app / ("0" * 16), app / ("1" * 16)
    for tree in (idle, running):
        (tree / "_internal").mkdir(parents=True)
    holder = subprocess.Popen(["flock", "-s", str(app / ("1" * 16 + ".lock")), "sleep", "300"])
    try:
        time.sleep(0.5)
        run(executable, "version", home=tmp_path, unpack_to=app)
        assert not idle.exists()
        assert running.exists()
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize("delay_s", [0.05, 0.3, 0.8, 1.5, 2.5])
def test_a_kill_while_unpacking_costs_nothing_but_time(
    executable: Path, tmp_path: Path, delay_s: float
) -> None:
    process = subprocess.Popen([str(executable), "version"], env=environment(tmp_path, tmp_path / "app"))
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    result = run(executable, "version", home=tmp_path, unpack_to=tmp_path / "app")
    assert result.stdout.startswith("inference-appliance"), result.stderr
    assert not list((tmp_path / "app").glob("*.partial"))


def test_its_own_files_are_checked(executable: Path, unpacked: Path, tmp_path: Path) -> None:
    assert run(executable, "self-check", home=tmp_path, unpack_to=unpacked).returncode == 0
    catalogue = next(unpacked.glob("*/_internal/models.toml"))
    before = catalogue.read_bytes()
    try:
        catalogue.write_bytes(before + b"# changed\n")
        result = run(executable, "self-check", home=tmp_path, unpack_to=unpacked)
    finally:
        catalogue.write_bytes(before)
    assert result.returncode == 5
    assert "models.toml is not what was packaged" in result.stderr


def test_a_cache_that_a_cleaner_thinned_out_is_unpacked_again(
    executable: Path, unpacked: Path, tmp_path: Path
) -> None:
    catalogue = next(unpacked.glob("*/_internal/models.toml"))
    catalogue.unlink()
    assert "smollm2" in run(executable, "list", home=tmp_path, unpack_to=unpacked).stdout
    assert catalogue.is_file()


def test_what_is_imported_late_is_inside(executable: Path, unpacked: Path, tmp_path: Path) -> None:
    with serving(executable, tmp_path, unpacked) as (url, process):
        wait_for(f"{url}/health", process)
        shape = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
        wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": shape}}
        assert json.loads(answer(url, response_format=wanted))["city"] == "Paris"
        assert b"appliance_ready 1.0" in get(f"{url}/metrics")
        assert b"<script" in get(f"{url}/web/index.html") or b"app.js" in get(f"{url}/web/index.html")
        assert post(f"{url}/v1/embeddings", {"input": "Paris"})["data"]
        listed = run(executable, "ps", "--url", url, home=tmp_path, unpack_to=unpacked)
        assert "smollm2" in listed.stdout


def test_the_machines_limits_are_measured_without_a_compiler(
    executable: Path, unpacked: Path, tmp_path: Path
) -> None:
    shown = run(executable, "profile", "--steps", "2", home=tmp_path, unpack_to=unpacked)
    assert "this machine: reads" in shown.stdout, shown.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_its_use(executable: Path, unpacked: Path, tmp_path: Path, command: str) -> None:
    shown = run(executable, command, "--help", home=tmp_path, unpack_to=unpacked)
    assert shown.stdout.startswith(f"usage: appliance {command}"), shown.stderr


def test_it_lists_what_is_inside(executable: Path, unpacked: Path, tmp_path: Path) -> None:
    shown = run(executable, "version", "--verbose", home=tmp_path, unpack_to=unpacked).stdout
    assert "smollm2-135m-instruct" in shown
    assert "torch 2." in shown
