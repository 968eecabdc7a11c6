"""The built file, as a person has it: no Python, no source tree, an environment with nothing in it.

Builds it when dist/ has none, which takes minutes: hence `slow`. `make package-check` runs just this.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
READY_S = 180.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="written for POSIX shells"),
]


@pytest.fixture(scope="session")
def executable() -> Path:
    found = sorted((CHECKOUT / "dist").glob("inference-appliance-*[!l]"))
    if not found:
        subprocess.run([sys.executable, "packaging/package.py"], cwd=CHECKOUT, check=True)
        found = sorted((CHECKOUT / "dist").glob("inference-appliance-*"))
    return found[0]


@pytest.fixture(scope="session")
def unpacked(executable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the executable has been unpacked already."""
    folder = tmp_path_factory.mktemp("unpacked")
    run(executable, "version", home=folder, unpack_to=folder / "app")
    return folder / "app"


def environment(home: Path, unpack_to: Path | None = None) -> dict[str, str]:
    values = {"HOME": str(home)}
    return values | ({"APPLIANCE_UNPACK_TO": str(unpack_to)} if unpack_to else {})


def run(
    executable: Path, *arguments: str, home: Path, unpack_to: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(executable), *arguments]
    return subprocess.run(
        command,
        env=environment(home, unpack_to),
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(
    executable: Path, home: Path, unpack_to: Path | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    process = subprocess.Popen(
        [str(executable), "serve", "--port", str(port)],
        env=environment(home, unpack_to),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None,
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        body: bytes = response.read()
        return body


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "it ended; its words are above"
        try:
            get(url)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"{url} did not answer within {READY_S:g} s")


def answer(url: str) -> str:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body | {"max_tokens": 16, "temperature": 0}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text: str = json.load(response)["choices"][0]["message"]["content"]
        return text


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


def test_it_lists_what_is_inside(executable: Path, unpacked: Path, tmp_path: Path) -> None:
    shown = run(executable, "version", "--verbose", home=tmp_path, unpack_to=unpacked).stdout
    assert "smollm2-135m-instruct" in shown
    assert "torch 2." in shown
