"""The built file as a service of this user, under a systemd of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from packaged.running import READY_S, answer, free_port, get

SYSTEMD = Path("/lib/systemd/systemd")
NAME = "inference-appliance.service"


@pytest.fixture
def session() -> Iterator[dict[str, str]]:
    """The environment of a user's session; its home is no temporary folder, which services do not see."""
    if not SYSTEMD.exists():
        pytest.skip("no systemd here")
    with tempfile.TemporaryDirectory(dir=Path.home()) as home:
        environment = {"HOME": home, "XDG_RUNTIME_DIR": f"{home}/run", "PATH": os.defpath}
        Path(environment["XDG_RUNTIME_DIR"]).mkdir(mode=0o700)
        with subprocess.Popen(
            [str(SYSTEMD), "--user"],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as manager:
            try:
                _wait_for_manager(environment)
                yield environment
            finally:
                manager.send_signal(signal.SIGTERM)


def _wait_for_manager(environment: Mapping[str, str]) -> None:
    for _ in range(100):
        asked = subprocess.run(
            ["systemctl", "--user", "is-system-running"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip() in ("running", "degraded"):
            return
        time.sleep(0.1)
    pytest.skip("no systemd of a user starts here")


def _service(program: Path, environment: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [str(program), "service", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=READY_S,
    )
    return done.stdout


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with suppress(urllib.error.HTTPError):  # it is loading
            get(f"{url}/health")
            return
        time.sleep(0.2)
    raise AssertionError(f"{url} was not ready within {READY_S:g} s")


def test_a_users_service_answers_again_after_it_is_killed_and_ends_when_removed(
    executable: Path, session: dict[str, str]
) -> None:
    program = Path(session["HOME"]) / "appliance"
    shutil.copy(executable, program)
    url = f"http://127.0.0.1:{free_port()}"
    said = _service(program, session, "install", "--", "--port", url.rpartition(":")[2])
    assert said.startswith(f"running at {url}; its log: ")
    assert "Paris" in answer(url)
    subprocess.run(["systemctl", "--user", "kill", "--signal=KILL", NAME], env=session, check=True)
    assert get(f"{url}/health/live") == b'{"status":"live"}'  # waited in the socket meanwhile
    _wait_until_ready(url)
    assert "Paris" in answer(url)
    assert "ActiveState=active" in _service(program, session, "status")
    _service(program, session, "uninstall")
    with pytest.raises(OSError, match="refused"):
        answer(url)


def test_installing_for_a_model_that_is_not_there_says_so(executable: Path, session: dict[str, str]) -> None:
    program = Path(session["HOME"]) / "appliance"
    shutil.copy(executable, program)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        _service(program, session, "install", "--", "--port", str(free_port()), "/no/such/model.gguf")
    assert "it ended while" in failed.value.stderr
    _service(program, session, "uninstall")
