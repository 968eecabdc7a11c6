"""Hours in minutes: random load at three times what runs at once, with clients that leave, stall and return.

python -m benchmarks.soak --file MODEL.gguf --minutes 20

Every finished answer is compared with the same prompt's answer while nothing else ran, and the server's
memory is read all along. Ends with 1 where an answer differs, a token is missing or a block stays taken.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.servers import free_port, spawn, wait_healthy

MAX_SEQUENCES = 8
CLIENTS = 3 * MAX_SEQUENCES
# Room for about a third of what the running sequences may want: blocks are evicted all the time, now and then
# a sequence is preempted.
KV_MEMORY = "12MiB"
LONGEST_ANSWER = 48
SETTLED_S = 120.0
_NUM_PROMPTS = 10
_SAMPLE_S = 10.0
_WAYS = {"stream": 50, "whole": 15, "leave midway": 20, "leave at once": 8, "stall": 7}
_WORDS = Path(__file__).parent / "texts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server at one moment, in seconds since the load began."""

    at_s: float
    resident_bytes: int


@dataclass(slots=True, kw_only=True)
class Soak:
    """One run: its clients, what they saw, and what the server took."""

    client: httpx.AsyncClient
    prompts: list[str]
    until_s: float
    expected: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    async def learn(self) -> None:
        """Ask every prompt alone, token by token."""
        for prompt in self.prompts:
            self.expected[prompt] = [part async for part in self._stream(prompt, LONGEST_ANSWER)]

    async def run(self) -> None:
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(self._one_client(random.Random(number)))
            tasks.create_task(self._watch(started_s))

    async def snapshot(self) -> dict[str, Any]:
        answer = await self.client.get("/system/v1/snapshot")
        snapshot: dict[str, Any] = answer.json()
        return snapshot

    async def _watch(self, started_s: float) -> None:
        while time.monotonic() < self.until_s:
            await asyncio.sleep(_SAMPLE_S)
            snapshot = await self.snapshot()
            resident = snapshot["memory"]["process_resident_bytes"]
            self.samples.append(Sample(at_s=time.monotonic() - started_s, resident_bytes=resident))

    async def _seen_by_server(self) -> str:
        """What the server has live: a fault whose request is not among it was lost on the way."""
        live = sorted((await self.snapshot())["sequences"], key=lambda sequence: -sequence["age_s"])
        told = (
            f"{s['status']} {s['age_s']:.0f} s {s['prompt_tokens']} + {s['output_tokens']}" for s in live[:3]
        )
        return f"{len(live)} live, the oldest: {', '.join(told)}"

    async def _one_client(self, chance: random.Random) -> None:
        while time.monotonic() < self.until_s:
            (way,) = chance.choices(list(_WAYS), _WAYS.values())
            prompt, length = chance.choice(self.prompts), chance.randint(1, LONGEST_ANSWER)
            try:
                await self._ask(way, prompt, length, chance)
                self.counts[way] += 1
            except httpx.HTTPError as error:
                self.faults.append(f"{way}: {type(error).__name__} {error}; {await self._seen_by_server()}")

    async def _ask(self, way: str, prompt: str, length: int, chance: random.Random) -> None:
        if way == "whole":
            answer = await self.client.post("/v1/completions", json=_body(prompt, length, stream=False))
            answer.raise_for_status()
            self._check(way, prompt, length, [answer.json()["choices"][0]["text"]])
            return
        if way == "leave at once":
            task = asyncio.create_task(self._collect(prompt, length))
            await asyncio.sleep(chance.random() * 0.2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return
        parts: list[str] = []
        async for part in self._stream(prompt, length):
            parts.append(part)
            if way == "leave midway" and len(parts) > length // 2:
                return
            if way == "stall" and len(parts) == 2:
                await asyncio.sleep(1 + 5 * chance.random())
        self._check(way, prompt, length, parts)

    async def _collect(self, prompt: str, length: int) -> list[str]:
        return [part async for part in self._stream(prompt, length)]

    async def _stream(self, prompt: str, length: int) -> AsyncIterator[str]:
        body = _body(prompt, length, stream=True)
        async with self.client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise httpx.HTTPError(event["error"]["message"])
                    yield event["choices"][0]["text"]

    def _check(self, way: str, prompt: str, length: int, parts: list[str]) -> None:
        """The text of the first `length` tokens, give or take the end of a character."""
        text, expected = "".join(parts), "".join(self.expected[prompt])
        # Every token alone has a part of its own; the last part of the whole holds what was held back.
        is_prefix = expected.startswith(text.rstrip("\ufffd"))
        if not is_prefix or (length == LONGEST_ANSWER and text != expected):
            self.faults.append(f"{way}: another answer of {length} tokens: {text!r} for {expected!r}")


def _body(prompt: str, length: int, *, stream: bool) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True, "stream": stream}


def _prompts() -> list[str]:
    """Texts of 20 to 400 words; every other one begins as the one before it does."""
    words = " ".join(path.read_text("utf-8") for path in sorted(_WORDS.glob("*.txt"))).split()
    chance, prompts = random.Random(3), list[str]()
    for number in range(_NUM_PROMPTS):
        start = chance.randrange(max(1, len(words) - 400))
        text = " ".join(words[start : start + chance.randint(20, 400)])
        prompts.append(f"{prompts[-1]} {text[:200]}" if number % 2 else text)
    return prompts


def _growth(samples: list[Sample]) -> tuple[float, float] | None:
    """Resident MB at two minutes and at the end, medians of half a minute."""
    settled = [s.resident_bytes for s in samples if SETTLED_S <= s.at_s <= SETTLED_S + 30]
    last = [s.resident_bytes for s in samples if s.at_s >= samples[-1].at_s - 30]
    if not settled:
        return None
    return sorted(settled)[len(settled) // 2] / 1e6, sorted(last)[len(last) // 2] / 1e6


async def soak(url: str, minutes: float) -> int:
    """Run the load against a server that is ready. Returns the number of faults."""
    limits = httpx.Limits(max_connections=CLIENTS + 4, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        run = Soak(client=client, prompts=_prompts(), until_s=0.0)
        await run.learn()
        print(f"{len(run.prompts)} prompts answered alone; now {CLIENTS} clients", flush=True)
        run.until_s = time.monotonic() + 60 * minutes
        await run.run()
        await asyncio.sleep(2)
        end = await run.snapshot()
        if end["requests"]["running"] or end["kv"]["used_blocks"]:
            run.faults.append(
                f"left behind: {end['requests']['running']} running, {end['kv']['used_blocks']} blocks"
            )
    print(f"requests: {dict(run.counts)}; faults: {len(run.faults)}")
    print(f"server: {end['requests']}; pool: {end['kv']}")
    growth = _growth(run.samples)
    if growth is not None:
        before, after = growth
        print(f"resident: {before:.1f} MB at 2 min, {after:.1f} MB at the end: {after / before - 1:+.2%}")
    for fault in run.faults[:20]:
        print(f"fault: {fault}")
    return len(run.faults)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "appliance", "serve", args.file, "--port", str(port), "--no-dashboard"]
    command += ["--threads", str(args.threads), "--max-sequences", str(MAX_SEQUENCES)]
    command += ["--kv-memory", KV_MEMORY]
    with tempfile.TemporaryFile() as log:
        process = spawn(command, log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_healthy(process, url)
            num_faults = asyncio.run(soak(url, args.minutes))
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
    sys.exit(bool(num_faults))


if __name__ == "__main__":
    main()
