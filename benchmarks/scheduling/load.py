"""Arrivals and lengths of simulated requests: Poisson or in bursts, from mixes of lengths. Seeded."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from appliance.engine.sequence import ServiceClass

Lengths = Callable[[random.Random], tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to come."""

    arrival_s: float
    num_prompt: int
    num_output: int
    service_class: ServiceClass = ServiceClass.SILVER


def chat(rng: random.Random) -> tuple[int, int]:
    """A conversation's turn: medians 160 tokens in and 80 out, with long tails."""
    return _log_normal(rng, 160, 0.9, 8, 3000), _log_normal(rng, 80, 0.7, 4, 1000)


def brief(rng: random.Random) -> tuple[int, int]:
    """A question and a short answer: for runs of very many requests."""
    return _log_normal(rng, 16, 0.6, 4, 100), _log_normal(rng, 32, 0.6, 2, 250)


def short_or_long(rng: random.Random) -> tuple[int, int]:
    """Nine in ten take 50 tokens in all, one 4000."""
    return (30, 20) if rng.random() < 0.9 else (3600, 400)


def around_600(rng: random.Random) -> tuple[int, int]:
    """Sequences of log-normal length around 600 of 8192 tokens, half of it prompt."""
    total = _log_normal(rng, 600, 0.8, 32, 8000)
    return total // 2, total - total // 2


def poisson(rng: random.Random, per_s: float) -> Iterator[float]:
    """Times of independent arrivals."""
    now_s = 0.0
    while True:
        now_s += rng.expovariate(per_s)
        yield now_s


def bursty(rng: random.Random, per_s: float, *, mean_burst: int = 12) -> Iterator[float]:
    """Bursts of geometric size, a tenth of a second between two of a burst."""
    burst_s = 0.0
    while True:
        burst_s += rng.expovariate(per_s / mean_burst)
        at_s = burst_s
        yield at_s
        while rng.random() > 1 / mean_burst:
            at_s += rng.expovariate(10.0)
            yield at_s


def requests(
    times: Iterator[float],
    lengths: Lengths,
    count: int,
    *,
    seed: int = 1,
    classes: Mapping[ServiceClass, float] | None = None,
) -> list[Request]:
    """The first `count` arrivals in order, each of a class drawn by its share."""
    rng = random.Random(seed)
    names, shares = zip(*(classes or {ServiceClass.SILVER: 1.0}).items(), strict=True)
    drawn = []
    for _ in range(count):
        num_prompt, num_output = lengths(rng)
        drawn.append(
            Request(
                arrival_s=next(times),
                num_prompt=num_prompt,
                num_output=num_output,
                service_class=rng.choices(names, shares)[0],
            )
        )
    return sorted(drawn, key=lambda request: request.arrival_s)


def _log_normal(rng: random.Random, median: float, sigma: float, least: int, most: int) -> int:
    return min(most, max(least, round(median * rng.lognormvariate(0.0, sigma))))
