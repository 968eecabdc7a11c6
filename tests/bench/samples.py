"""Timings and reports made of seeded noise, in place of a server."""

import random
from functools import cache

from appliance.bench.report import Report, Stage, Targets, make_stage, span_s
from appliance.bench.request_timing import RequestTiming


def timings(seed: int, *, count: int = 60, slowdown: float = 1.0, noise: float = 0.08) -> list[RequestTiming]:
    """One request after the other: about 50 ms to the first of nine tokens, about 10 ms for each later."""
    source = random.Random(seed)
    found = []
    for index in range(count):
        sent_s = float(index)
        ttft = 0.05 * slowdown * source.lognormvariate(0, noise)
        gap = 0.01 * slowdown * source.lognormvariate(0, noise)
        times = tuple(sent_s + ttft + gap * n for n in range(9))
        found.append(
            RequestTiming(
                sent_s=sent_s,
                chunk_times_s=times,
                ended_s=times[-1] + 0.001,
                num_prompt_tokens=8,
                num_output_tokens=9,
            )
        )
    return found


@cache
def stage(seed: int, *, name: str = "4 clients", load: float = 4, **shape: float) -> Stage:
    done = timings(seed, **shape)  # type: ignore[arg-type]  # counts and ratios by name
    return make_stage(name, load, [done], is_open=False, wall_s=span_s(done), targets=Targets())


def report(*stages: Stage) -> Report:
    return Report(
        url="http://h:1",
        model="m",
        version="0",
        started="now",
        machine="here",
        workload="8:9",
        targets=Targets(),
        stages=stages,
    )
