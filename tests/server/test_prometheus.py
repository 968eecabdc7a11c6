"""A real Prometheus scrapes the appliance, and every query of the Grafana board finds data in it."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from appliance.server.listener import bind
from server.rig import Rig, chat, post, serve, wait_for

PROMETHEUS = shutil.which("prometheus")
BOARD = Path(__file__).resolve().parents[2] / "packaging" / "grafana" / "appliance.json"
VARIABLES = {"$model": ".*", "$__rate_interval": "20s"}


def queries() -> list[tuple[str, str]]:
    board = json.loads(BOARD.read_text("utf-8"))
    found = [(panel["title"], t["expr"]) for panel in board["panels"] for t in panel.get("targets", [])]
    for variable, value in VARIABLES.items():
        found = [(title, query.replace(variable, value)) for title, query in found]
    return found


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Scrapes the target each second."""
    config = folder / "prometheus.yml"
    job = {"job_name": "appliance", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    config.write_text(json.dumps({"scrape_configs": [job]}))  # JSON is YAML
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    command = [str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: _is_up(url), 60)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def data(url: str, query: str) -> list[float]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=10).json()
    assert answer["status"] == "success", (query, answer)
    return [float(series["value"][1]) for series in answer["data"]["result"]]


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="there is no Prometheus here")
def test_every_query_of_the_board_finds_data_in_a_real_prometheus(rig: Rig, tmp_path: Path) -> None:
    rig.runner.step_s = 0.002
    with serve(rig) as server, prometheus(tmp_path, server.url.removeprefix("http://")) as url:
        until_s = time.monotonic() + 15
        num_requests = 0
        while time.monotonic() < until_s:
            assert post(server, "/v1/chat/completions", chat(stream=True))[0] == 200
            num_requests += 1
            time.sleep(0.05)
        rig.wait_idle()
        time.sleep(2)
        assert data(url, 'up{job="appliance"}') == [1.0]
        assert data(url, "vllm:time_to_first_token_seconds_count") == [num_requests]
        asked = queries()
        assert len(asked) > 20
        found = {query: data(url, query) for _, query in asked}
        assert [query for query, values in found.items() if not values] == []
        # No quotient of nothing by nothing.
        assert [query for query, values in found.items() if any(value != value for value in values)] == []
        assert data(url, "label_values") == []  # an unknown name finds nothing: the checks above can fail
