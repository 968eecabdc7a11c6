"""kill -9 at random moments: the next start works, and nothing is left but the cache.

`pytest tests/packaged/test_kills.py --kills 100` does it a hundred times: half while unpacking, half serving.
"""

import random
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from packaged.running import answer, environment, run, serving, wait_for


@pytest.fixture
def num_kills(request: pytest.FixtureRequest) -> int:
    """Of each kind."""
    kills: int = request.config.getoption("--kills", default=10)
    return kills // 2


def processes_of(home: Path) -> list[str]:
    """Whoever runs with this home folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(str(process))
        except psutil.Error:
            continue  # ended meanwhile, or the system's own
    return found


def assert_clean(home: Path, app: Path) -> None:
    assert processes_of(home) == []
    assert not list(app.glob("*.partial"))
    assert {path.name for path in home.iterdir()} <= {".local", ".cache", ".config", "app", "temporary"}
    assert list((home / "temporary").iterdir()) == []
    history = home / ".local/state/inference-appliance/requests.sqlite"
    if history.exists():
        with closing(sqlite3.connect(history)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def home_of(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    (tmp_path / "temporary").mkdir()
    return tmp_path / "app", {"TMPDIR": str(tmp_path / "temporary")}


def test_killed_while_unpacking(executable: Path, tmp_path: Path, num_kills: int) -> None:
    app, more = home_of(tmp_path)
    began_s = time.monotonic()
    run(executable, "version", home=tmp_path, unpack_to=app)
    unpacking_s = time.monotonic() - began_s
    for seed in range(num_kills):
        shutil.rmtree(app)
        delay_s = random.Random(seed).uniform(0.0, unpacking_s)
        process = subprocess.Popen(
            [str(executable), "version"], env=environment(tmp_path, app) | more, stdout=subprocess.DEVNULL
        )
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        result = run(executable, "version", home=tmp_path, unpack_to=app)
        assert result.stdout.startswith("inference-appliance"), (seed, delay_s, result.stderr)
        assert_clean(tmp_path, app)


def test_killed_while_starting_or_serving(executable: Path, tmp_path: Path, num_kills: int) -> None:
    app, more = home_of(tmp_path)
    run(executable, "version", home=tmp_path, unpack_to=app)
    for seed in range(num_kills):
        moments = random.Random(seed)
        with serving(executable, tmp_path, app, more=more) as (url, process):
            if seed % 2:
                wait_for(f"{url}/health/live", process)
            time.sleep(moments.uniform(0.0, 8.0))
        assert_clean(tmp_path, app)
    with serving(executable, tmp_path, app, more=more) as (url, process):
        wait_for(f"{url}/health", process)
        assert "Paris" in answer(url)
