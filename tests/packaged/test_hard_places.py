"""Where the built file may find itself: full disks, a read-only one, a bare system, a desktop."""

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from packaged.running import READY_S, answer, environment, free_port, run, serving, wait_for

needs_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may mount")
ENTER = ("unshare", "--mount", "sh", "-c")


def on_small_disk(folder: Path, options: str) -> Sequence[str]:
    """What goes before a command so that `folder` is a disk of its own for it."""
    folder.mkdir(exist_ok=True)
    return (*ENTER, f'mount -t tmpfs -o {options} none "$0" && exec "$@"', str(folder))


def on_full_disk(folder: Path) -> Sequence[str]:
    """The same with not a byte free."""
    folder.mkdir(exist_ok=True)
    fill = 'head -c 1000000 /dev/zero > "$0/filled" 2>/dev/null'
    return (*ENTER, f'mount -t tmpfs -o size=64k none "$0"; {fill}; exec "$@"', str(folder))


@needs_root
@pytest.mark.parametrize("options", ["size=1m", "size=100m", "size=500m", "size=2g,nr_inodes=700"])
def test_a_disk_that_fills_while_unpacking_is_named(executable: Path, tmp_path: Path, options: str) -> None:
    small = tmp_path / "small"
    inside = on_small_disk(small, options)
    result = run(executable, "version", home=tmp_path, unpack_to=small / "app", inside=inside)
    assert result.returncode == 9
    assert str(small) in result.stderr
    assert "free" in result.stderr or "No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


@needs_root
def test_a_home_without_a_byte_free_still_serves(executable: Path, unpacked: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with (
        (tmp_path / "errors").open("w+b") as errors,
        serving(executable, home, unpacked, inside=on_full_disk(home), errors=errors) as (url, process),
    ):
        wait_for(f"{url}/health", process)
        assert "Paris" in answer(url)
        time.sleep(5)  # the history is written meanwhile, or not
        assert "Paris" in answer(url)
        said = (tmp_path / "errors").read_text()
    assert "the history of requests is not written" in said
    assert "Traceback" not in said


@needs_root
def test_what_a_full_disk_refuses_is_told_in_a_line(executable: Path, unpacked: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    result = run(
        executable, "key", "create", "--name", "app", home=home, unpack_to=unpacked, inside=on_full_disk(home)
    )
    assert result.returncode == 9, result.stderr
    assert "Traceback" not in result.stderr
    assert str(home) in result.stderr


def test_a_full_disk_under_its_own_output_ends_no_server(
    executable: Path, unpacked: Path, tmp_path: Path
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with (
        full.open("wb") as stream,
        serving(executable, tmp_path, unpacked, output=stream, errors=stream) as (url, process),
    ):
        wait_for(f"{url}/health", process)
        assert "Paris" in answer(url)


@needs_root
def test_it_starts_from_a_read_only_mount(executable: Path, tmp_path: Path) -> None:
    place, home = tmp_path / "read only", tmp_path / "home"
    for folder in (place, home):
        folder.mkdir()
    os.link(executable, place / "Appliance")
    bind = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    with serving(place / "Appliance", home, inside=(*ENTER, bind, str(place))) as (url, process):
        wait_for(f"{url}/health", process)
        assert "Paris" in answer(url)


@needs_root
def test_a_bare_system_without_network_or_home_answers(
    executable: Path, request: pytest.FixtureRequest
) -> None:
    tree: Path | None = request.config.getoption("--bare-tree", default=None)
    if tree is None:
        pytest.skip("--bare-tree names a tree that `debootstrap --variant=minbase` made")
    program = tree / "opt" / "Büro & наука" / "Appliance"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.unlink(missing_ok=True)
    subprocess.run(["cp", executable, program], check=True)
    isolated = ("unshare", "--net", "--pid", "--fork", f"--mount-proc={tree}/proc", "chroot", str(tree))
    command = [*isolated, "/usr/bin/env", "-i", f"/{program.relative_to(tree)}", "run", "smollm2"]
    command += ["What is the capital of France?", "--temperature", "0", "--max-tokens", "12"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
    assert "Paris" in result.stdout, result.stderr


def browser_of(home: Path) -> Path:
    """A browser that writes what it is to open, and its library path, into the file returned."""
    browser, opened = home / "programs" / "xdg-open", home / "opened"
    browser.parent.mkdir()
    browser.write_text(f'#!/bin/sh\necho "$1 ${{LD_LIBRARY_PATH-unset}}" >> "{opened}"\n')
    browser.chmod(0o755)
    return opened


def double_click(executable: Path, unpacked: Path, home: Path, port: int) -> subprocess.Popen[bytes]:
    """As a file manager starts it: a screen, no terminal, a session of its own."""
    desktop = {"DISPLAY": ":0", "PATH": f"{home / 'programs'}:/usr/bin:/bin", "APPLIANCE_PORT": str(port)}
    return subprocess.Popen(
        [str(executable)],
        env=environment(home, unpacked) | desktop,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_a_double_click_opens_the_page_and_a_second_one_finds_it(
    executable: Path, unpacked: Path, tmp_path: Path
) -> None:
    port, opened = free_port(), browser_of(tmp_path)
    first = double_click(executable, unpacked, tmp_path, port)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", first)
        assert double_click(executable, unpacked, tmp_path, port).wait(READY_S) == 0
        assert opened.read_text().splitlines() == [f"http://127.0.0.1:{port} unset"] * 2
    finally:
        first.kill()
        first.wait()


def test_a_double_click_that_cannot_serve_shows_why(executable: Path, unpacked: Path, tmp_path: Path) -> None:
    opened = browser_of(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert double_click(executable, unpacked, tmp_path, port).wait(READY_S) == 8
    page = Path(opened.read_text().split()[0].removeprefix("file://"))
    assert f"127.0.0.1:{port} is taken" in page.read_text("utf-8")
