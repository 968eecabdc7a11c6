"""Loads any OpenAI-compatible server and measures its answers. Knows the wire, not who serves.

result = run_load("http://127.0.0.1:11500", "smollm2-135m-instruct", concurrency=8, num_requests=24,
                  prompt_tokens=128, output_tokens=64)
result.output_tokens_per_s, result.ttft.p50, result.max_gap_s
"""

import asyncio
import time

from appliance.bench.exchange import Clock, Target
from appliance.bench.load_result import LoadResult
from appliance.bench.session import Session
from appliance.bench.traffic import Closed, send_all
from appliance.bench.workload import Planned


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
    plans = [Planned(prompt_tokens=prompt_tokens, output_tokens=output_tokens)] * num_requests

    async def run() -> LoadResult:
        session = await Session.open(target, model, clock, num_tokens=prompt_tokens)
        timings = await send_all(session, plans, Closed(concurrency))
        return LoadResult(
            concurrency=concurrency, sends_token_ids=session.tokens_per_word is None, timings=timings
        )

    return asyncio.run(run())
