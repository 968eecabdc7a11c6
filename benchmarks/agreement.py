"""Whether everybody tells the same of one load: the dashboard, `/metrics`, `appliance bench`, a plain client.

    python -m benchmarks.agreement MODEL [--clients 4] [--requests 24] [--tokens 64]

Each client loads a fresh server, so that the server's figures are those of this load alone. The plain client
shares no code with the benchmark. Exit code 1 where two figures differ by more than 5%.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import httpx
from prometheus_client.parser import text_string_to_metric_families

from appliance.bench.own_server import own_server
from appliance.engine.percentiles import nearest_rank

MOST = 0.05
RATE_WINDOW_S = 5.0  # the engine's
_WORDS = ["river", "stone", "winter", "lamp", "copper", "meadow", "signal", "harbor", "violet", "engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    clients: int
    requests: int
    tokens: int


@dataclass(slots=True, kw_only=True)
class Seen:
    """What a client saw."""

    ttfts_s: list[float] = field(default_factory=list)
    tpots_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_probes: int = 0  # requests of one token besides those timed
    times_s: list[float] = field(default_factory=list)  # of every token, on the clock of perf_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    client: float
    server: float
    source: str

    @property
    def difference(self) -> float:
        return abs(self.client - self.server) / max(self.client, self.server, 1e-9)


async def plain_client(url: str, model: str, load: Load) -> Seen:
    """Stream chat completions and note when each line came."""
    seen, todo = Seen(), iter(range(load.requests))

    async def one_client(http: httpx.AsyncClient) -> None:
        for number in todo:
            await _one_request(http, url, model, load, number, seen)

    async with httpx.AsyncClient(timeout=600) as http:
        await asyncio.gather(*(one_client(http) for _ in range(load.clients)))
    return seen


async def _one_request(
    http: httpx.AsyncClient, url: str, model: str, load: Load, number: int, seen: Seen
) -> None:
    words = " ".join(_WORDS[(number * 7 + place) % len(_WORDS)] for place in range(60))
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{number} {words}"}],
        "max_tokens": load.tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    times, num_tokens, sent_s = [], 0, time.perf_counter()
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if any(choice["delta"].get("content") for choice in event["choices"]):
                times.append(time.perf_counter())
            num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
    seen.ttfts_s.append(times[0] - sent_s)
    seen.tpots_s.append((times[-1] - times[0]) / (num_tokens - 1))
    seen.num_tokens += num_tokens
    seen.times_s += times


def our_bench(url: str, load: Load) -> Seen:
    """What `appliance bench` saw of a load of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        flags = ["--clients", str(load.clients), "--requests", str(load.requests), "--warm-up", "0"]
        flags += ["--lengths", f"80:{load.tokens}", "--json", str(file)]
        subprocess.run(
            [sys.executable, "-m", "appliance", "bench", url, *flags], check=True, stdout=subprocess.DEVNULL
        )
        (stage,) = json.loads(file.read_text())[0]["stages"]
    return Seen(
        ttfts_s=stage["samples"]["ttft"],
        tpots_s=stage["samples"]["tpot"],
        num_tokens=round(stage["output_tokens_per_s"] * stage["wall_s"]),
        num_probes=1,
    )


def compare(url: str, seen: Seen) -> list[Row]:
    """The client's figures beside the dashboard's and those of `/metrics`."""
    dashboard = json.loads(
        subprocess.run(
            [sys.executable, "-m", "appliance", "dashboard", "--url", url, "--json"],
            check=True,
            capture_output=True,
        ).stdout
    )
    in_window, expected = dashboard["latency"]["ttft"]["count"], len(seen.ttfts_s) + seen.num_probes
    if in_window < expected:
        print(f"only {in_window} of {expected} requests are in the dashboard's last minute; send fewer")
    metrics = _metrics(url)
    rows = []
    for name, values, metric in (
        ("ttft", seen.ttfts_s, "vllm:time_to_first_token_seconds"),
        ("tpot", seen.tpots_s, "vllm:request_time_per_output_token_seconds"),
    ):
        for percent in (50, 95):
            told_ms = dashboard["latency"][name][f"p{percent}_s"] * 1e3
            found_ms = nearest_rank(sorted(values), percent) * 1e3
            rows.append(
                Row(name=f"{name} p{percent}, ms", client=found_ms, server=told_ms, source="dashboard")
            )
        told_ms = metrics[f"{metric}_sum"] / metrics[f"{metric}_count"] * 1e3
        rows.append(
            Row(name=f"{name} mean, ms", client=mean(values) * 1e3, server=told_ms, source="/metrics")
        )
    count = metrics["vllm:time_to_first_token_seconds_count"]
    tokens = metrics["vllm:generation_tokens_total"]
    return [
        *rows,
        Row(name="requests", client=len(seen.ttfts_s) + seen.num_probes, server=count, source="/metrics"),
        Row(name="output tokens", client=seen.num_tokens + seen.num_probes, server=tokens, source="/metrics"),
        Row(
            name="output tokens",
            client=seen.num_tokens + seen.num_probes,
            server=dashboard["throughput"]["output_tokens"],
            source="dashboard",
        ),
    ]


def _metrics(url: str) -> dict[str, float]:
    """Every sample of one model, by its name; buckets left out."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    return {s.name: s.value for family in families for s in family.samples if not s.name.endswith("_bucket")}


async def speeds(url: str, model: str, load: Load) -> Row:
    """The dashboard's tokens a second, watched while a load runs, beside what the client got meanwhile."""
    told: list[tuple[float, float]] = []
    began_s = time.perf_counter()
    client = asyncio.create_task(plain_client(url, model, load))
    async with httpx.AsyncClient() as http:
        while not client.done():
            await asyncio.sleep(0.25)
            snapshot = (await http.get(f"{url}/system/v1/snapshot")).json()
            told.append((time.perf_counter(), snapshot["throughput"]["output_tokens_per_s"]))
    seen = await client
    # Whole windows only: before one is full the appliance counts from its first work on.
    settled = [(at_s, rate) for at_s, rate in told if at_s > began_s + 1.2 * RATE_WINDOW_S] or told
    share = seen.num_tokens / max(1, len(seen.times_s))  # a line may bring more than a token
    counted = [
        share * sum(at_s - RATE_WINDOW_S < time_s <= at_s for time_s in seen.times_s) / RATE_WINDOW_S
        for at_s, _ in settled
    ]
    return Row(
        name="output tokens/s",
        client=mean(counted),
        server=mean(rate for _, rate in settled),
        source="dashboard",
    )


def check(model: str, load: Load) -> list[tuple[str, Row]]:
    """Run every client; return (client, row)."""
    found: list[tuple[str, Row]] = []
    program = [sys.executable, "-m", "appliance"]
    with own_server(program, model) as url:
        name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        seen = asyncio.run(plain_client(url, name, load))
        found += [("plain client", row) for row in compare(url, seen)]
        found.append(("plain client", asyncio.run(speeds(url, name, load))))
    with own_server(program, model) as url:
        found += [("appliance bench", row) for row in compare(url, our_bench(url, load))]
    return found


def show(found: Sequence[tuple[str, Row]]) -> None:
    print(f"{'client':<16}{'figure':<18}{'client':>12}{'appliance':>12}  {'told by':<11}{'differs by':>10}")
    for client, row in found:
        print(
            f"{client:<16}{row.name:<18}{row.client:>12.2f}{row.server:>12.2f}  {row.source:<11}"
            f"{row.difference:>10.1%}{'  too much' if row.difference > MOST else ''}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    found = check(args.model, Load(clients=args.clients, requests=args.requests, tokens=args.tokens))
    show(found)
    return int(any(row.difference > MOST for _, row in found))


if __name__ == "__main__":
    sys.exit(main())
