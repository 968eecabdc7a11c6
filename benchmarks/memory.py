"""What the KV pool gives: a follow-up turn's first token with its history cached, and overload without loss.

python -m benchmarks.memory --file MODEL.gguf
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from benchmarks.servers import free_port, spawn, wait_healthy

HISTORY_TOKENS, QUESTION_TOKENS = 2048, 32
ROUNDS = 7
MAX_SEQUENCES = 8
# At three times what runs at once, in a pool of about two thirds of what those want.
OVERLOAD_CLIENTS, OVERLOAD_REQUESTS, OVERLOAD_KV = 3 * MAX_SEQUENCES, 72, "28MiB"


def tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(300, 20_000) for _ in range(count)]


def ttft_s(client: httpx.Client, prompt: list[int]) -> float:
    """Seconds from sending to the first token's bytes."""
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True, "ignore_eos": True}
    started_s = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                return time.perf_counter() - started_s
    raise RuntimeError("no token came")


def follow_up(client: httpx.Client) -> None:
    """A conversation's second turn against the same length asked for the first time, in turn."""
    chance, cold, warm = random.Random(1), list[float](), list[float]()
    for _ in range(ROUNDS):
        history = tokens(chance, HISTORY_TOKENS)
        cold.append(ttft_s(client, history + tokens(chance, QUESTION_TOKENS)))
        warm.append(ttft_s(client, history + tokens(chance, QUESTION_TOKENS)))
    ratios = [w / c for w, c in zip(warm, cold, strict=True)]
    print(
        f"TTFT after {HISTORY_TOKENS} tokens: cold {1000 * statistics.median(cold):.0f} ms, with the prefix "
        f"{1000 * statistics.median(warm):.0f} ms: {statistics.median(ratios):.3f}x "
        f"({min(ratios):.3f} to {max(ratios):.3f})",
        flush=True,
    )


def complete(client: httpx.Client, prompt: list[int], length: int) -> tuple[str, int]:
    body = {"prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body).raise_for_status().json()
    return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]


def overload(client: httpx.Client) -> None:
    """Every answer under overload against the same one alone."""
    chance = random.Random(2)
    work = [(tokens(chance, chance.randint(20, 120)), chance.randint(8, 64)) for _ in range(12)]
    alone = [complete(client, *item) for item in work]
    order = [number % len(work) for number in range(OVERLOAD_REQUESTS)]
    chance.shuffle(order)
    with ThreadPoolExecutor(OVERLOAD_CLIENTS) as clients:
        found = list(clients.map(lambda number: complete(client, *work[number]), order))
    num_wrong = sum(answer != alone[number] for number, answer in zip(order, found, strict=True))
    lost = sum(work[number][1] - answer[1] for number, answer in zip(order, found, strict=True))
    snapshot = client.get("/system/v1/snapshot").json()
    print(
        f"{len(order)} requests, {OVERLOAD_CLIENTS} clients: {num_wrong} answers differ, {lost} tokens lost"
    )
    print(json.dumps({"requests": snapshot["requests"], "kv": snapshot["kv"]}), flush=True)


def with_server(args: argparse.Namespace, flags: list[str], use: str) -> None:
    port = free_port()
    command = [sys.executable, "-m", "appliance", "serve", args.file, "--port", str(port), "--no-dashboard"]
    with tempfile.TemporaryFile() as log:
        process = spawn([*command, "--threads", str(args.threads), *flags], log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_healthy(process, url)
            with httpx.Client(base_url=url, timeout=600) as client:
                {"follow-up": follow_up, "overload": overload}[use](client)
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--part", choices=("follow-up", "overload"), help="one part alone")
    args = parser.parse_args()
    if args.part != "overload":
        with_server(args, [], "follow-up")
    if args.part == "follow-up":
        return
    flags = ["--max-sequences", str(MAX_SEQUENCES), "--kv-memory", OVERLOAD_KV, "--kv-dtype", "bf16"]
    with_server(args, flags, "overload")


if __name__ == "__main__":
    main()
