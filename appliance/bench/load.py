"""Loads any OpenAI-compatible server and measures its answers. Knows the wire, not who serves.

result = run_load("http://127.0.0.1:11500", "smollm2-135m-instruct", concurrency=8, num_requests=24,
                  prompt_tokens=128, output_tokens=64)
result.output_tokens_per_s, result.ttft.p50, result.max_gap_s
"""

import asyncio
import random
import time
from collections.abc import Iterator

import msgspec

from appliance.bench.exchange import Clock, Exchange, Target, exchange, read_timing
from appliance.bench.load_result import LoadResult
from appliance.bench.prompts import PromptMaker
from appliance.bench.request_timing import RequestTiming
from appliance.errors import ApplianceError

REQUEST_TIMEOUT_S = 600.0


class ServerUnusable(ApplianceError):
    """The server answers no completion at all; the message holds what it said."""


def run_load(
    url: str,
    model: str,
    *,
    concurrency: int,
    num_requests: int,
    prompt_tokens: int,
    output_tokens: int,
    api_key: str | None = None,
    clock: Clock = time.perf_counter,
) -> LoadResult:
    """Send `num_requests` completions from `concurrency` clients and wait for the last.

    Every prompt is new, so that no cache helps, and every answer runs to `output_tokens`. Answers are greedy.
    Raises ServerUnusable, and ValueError for a URL that is none.
    """
    target = Target.parse(url, api_key)
    return asyncio.run(
        _run_load(
            _Load(target, model, output_tokens, clock), concurrency, num_requests, prompt_tokens=prompt_tokens
        )
    )


async def _run_load(load: "_Load", concurrency: int, num_requests: int, *, prompt_tokens: int) -> LoadResult:
    prompts = await _choose_prompts(load, prompt_tokens)
    source = random.SystemRandom()
    requests = iter([load.request(prompts.make(source)) for _ in range(num_requests)])
    exchanges: list[Exchange] = []
    await asyncio.gather(*(_client(load, requests, exchanges) for _ in range(concurrency)))
    return LoadResult(
        concurrency=concurrency,
        sends_token_ids=prompts.tokens_per_word is None,
        timings=tuple(read_timing(done) for done in exchanges),
    )


async def _client(load: "_Load", requests: Iterator[bytes], exchanges: list[Exchange]) -> None:
    """One client: the next request of all goes out when its last one ended."""
    for request in requests:
        done = await load.send(request)
        exchanges.append(done)


class _Load:
    """What all requests of a run have in common."""

    def __init__(self, target: Target, model: str, output_tokens: int, clock: Clock) -> None:
        self._target = target
        self._model = model
        self._output_tokens = output_tokens
        self._clock = clock

    def request(self, prompt: list[int] | str, output_tokens: int | None = None) -> bytes:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": output_tokens or self._output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        return self._target.request(msgspec.json.encode(body))

    async def send(self, request: bytes) -> Exchange:
        return await exchange(self._target, request, clock=self._clock, timeout_s=REQUEST_TIMEOUT_S)

    async def try_prompt(self, prompt: list[int] | str) -> RequestTiming:
        return read_timing(await self.send(self.request(prompt, output_tokens=1)))


async def _choose_prompts(load: _Load, num_tokens: int) -> PromptMaker:
    """Ask for one token with each kind of prompt until one is taken; that also wakes the server."""
    source = random.SystemRandom()
    by_ids = PromptMaker(num_tokens=num_tokens)
    if (await load.try_prompt(by_ids.make(source))).error is None:
        return by_ids
    by_words = PromptMaker(num_tokens=num_tokens, tokens_per_word=1.0)
    timing = await load.try_prompt(by_words.make(source))
    if timing.error is not None:
        raise ServerUnusable(f"the server answered no completion: {timing.error}")
    return PromptMaker(
        num_tokens=num_tokens, tokens_per_word=(timing.num_prompt_tokens or num_tokens) / num_tokens
    )
