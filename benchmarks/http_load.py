"""Both servers under load over HTTP, in turn, never at once; and their memory after loading."""

from appliance.bench.load import run_load
from appliance.bench.load_result import LoadResult
from benchmarks.engines import Bench
from benchmarks.results import Part
from benchmarks.servers import LLAMA_HTTP, OURS_HTTP, Server, running

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
# Clients, and how many requests they send in a round.
LOADS = ((1, 6), (8, 24), (32, 64))
OUTPUT_RATE = "output tok/s"
WORST_GAP = "worst gap, ms"
RESIDENT = "resident after load, MB"
WITHOUT_POOL = "without the KV pool, MB"
ALLOWED = "1.3 x file + 250 MB"
FILE = "file, MB"
_WARM_UP = 8


def http_cell(clients: int, measure: str) -> str:
    return f"{clients} clients: {measure}"


def run_http(bench: Bench, part: Part, rounds: int) -> None:
    """Load each server once a round with every number of clients."""
    for number in range(rounds):
        for name in (OURS_HTTP, LLAMA_HTTP) if number % 2 == 0 else (LLAMA_HTTP, OURS_HTTP):
            with running(bench, name) as server:
                _load(server, _WARM_UP, _WARM_UP, output_tokens=8)
                for clients, num_requests in LOADS:
                    _add(part, name, _load(server, clients, num_requests))
        print(f"round {number + 1} of {rounds} of HTTP is done", flush=True)


def run_memory(bench: Bench, part: Part) -> None:
    """Read each server's memory when it is ready, before its first request."""
    for name, file in ((OURS_HTTP, bench.model), (LLAMA_HTTP, bench.q4_0)):
        with running(bench, name) as server:
            resident_bytes, pool_bytes = server.resident_bytes(), server.resident_pool_bytes()
        file_mb = file.stat().st_size / 1e6
        part.add(name, FILE, file_mb)
        part.add(name, ALLOWED, 1.3 * file_mb + 250)
        part.add(name, RESIDENT, resident_bytes / 1e6)
        if pool_bytes is not None:
            part.add(name, WITHOUT_POOL, (resident_bytes - pool_bytes) / 1e6)


def _load(server: Server, clients: int, num_requests: int, output_tokens: int = OUTPUT_TOKENS) -> LoadResult:
    return run_load(
        server.url,
        server.model,
        concurrency=clients,
        num_requests=num_requests,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=output_tokens,
    )


def _add(part: Part, name: str, result: LoadResult) -> None:
    clients = result.concurrency
    for error in sorted(set(result.errors)):
        part.notes.append(f"{name}, {clients} clients: {result.errors.count(error)} failed: {error}")
    part.add(name, http_cell(clients, OUTPUT_RATE), result.output_tokens_per_s)
    for measure, percentiles in (("TTFT", result.ttft), ("TPOT", result.tpot), ("ITL", result.itl)):
        if percentiles is not None:
            for percent, value_s in zip((50, 95, 99), percentiles, strict=True):
                part.add(name, http_cell(clients, f"{measure} P{percent}, ms"), 1000 * value_s)
    if result.max_gap_s is not None:
        part.add(name, http_cell(clients, WORST_GAP), 1000 * result.max_gap_s)
