"""What the flags of `appliance bench` ask to send: the stages of a run, or a soak's stage over and over."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from appliance.bench.benchmark import FEWEST_OPEN, StagePlan, sweep
from appliance.bench.traffic import Closed, Open
from appliance.bench.workload import LengthMix, poisson_times, read_trace
from appliance.errors import BadSetting

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)([smh])$")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FEWEST_REQUESTS, _ROUNDS = 24, 3
_TURNS = (
    16  # of two servers: few enough to wait for, enough to tell chance from a difference in a whole sweep
)
_NumberT = TypeVar("_NumberT", int, float)
# Short parts of a soak: memory is read and servers take turns between them.
_PART_S, _FEWEST_IN_PART = 20.0, 4


def stages(args: argparse.Namespace) -> tuple[StagePlan, ...]:
    """Return every stage of a run without a soak. Raises BadSetting."""
    mix = LengthMix.parse(args.lengths)
    if args.trace:
        return (_trace_stage(args),)
    counts: tuple[int, ...] = () if args.rate else sweep(args.peak)
    if args.clients is not None:
        counts = _clients(args)
    fewest = _TURNS * FEWEST_OPEN if args.vs else _FEWEST_REQUESTS
    rounds = _TURNS if args.vs else _ROUNDS
    return (
        *(_closed(n, args.requests or max(_FEWEST_REQUESTS, rounds * n), mix, args.seed) for n in counts),
        *(_open(rate, args.requests or fewest, mix, args.seed) for rate in _rates(args)),
    )


def soak_parts(args: argparse.Namespace) -> Callable[[int], StagePlan]:
    """Return what gives a soak's n-th part: the peak, or the one other load named. Raises BadSetting."""
    mix = LengthMix.parse(args.lengths)
    if args.trace:
        trace = _trace_stage(args)
        return lambda _: trace
    counts, rates = _clients(args), _rates(args)
    if len(counts) + len(rates) > 1:
        raise BadSetting("a soak keeps one load; name one number of --clients or one --rate", param="soak")
    if rates:
        count = args.requests or max(_FEWEST_IN_PART, round(_PART_S * rates[0]))
        return lambda number: _open(rates[0], count, mix, args.seed + number)
    clients = counts[0] if counts else args.peak
    count = args.requests or 2 * clients
    return lambda number: _closed(clients, count, mix, args.seed + number)


def soak_s(text: str) -> float:
    """Read how long a soak lasts. Raises BadSetting."""
    match = _DURATION.match(text)
    if match is None or not float(match[1]):
        raise BadSetting(f"--soak is {text!r}; write a time such as 90s, 30m or 1h", param="soak")
    return float(match[1]) * _UNIT_S[match[2]]


def _closed(clients: int, count: int, mix: LengthMix, seed: int) -> StagePlan:
    name = f"{clients} client{'s' if clients > 1 else ''}"
    return StagePlan(name=name, load=clients, plans=tuple(mix.draw(count, seed)), pattern=Closed(clients))


def _open(rate: float, count: int, mix: LengthMix, seed: int) -> StagePlan:
    times = tuple(poisson_times(count, rate, seed))
    plans = tuple(mix.draw(count, seed))
    return StagePlan(name=f"{rate:g} requests/s", load=rate, plans=plans, pattern=Open(times))


def _trace_stage(args: argparse.Namespace) -> StagePlan:
    plans = read_trace(Path(args.trace))
    times = tuple((plan.at_s or 0.0) / args.trace_speed for plan in plans)
    rate = len(plans) / max(times[-1], 1e-9) if times[-1] else float(len(plans))
    name = f"trace {Path(args.trace).name}"
    return StagePlan(name=name, load=round(rate, 3), plans=tuple(plans), pattern=Open(times))


def _clients(args: argparse.Namespace) -> tuple[int, ...]:
    return _numbers("clients", args.clients, int)


def _rates(args: argparse.Namespace) -> tuple[float, ...]:
    return _numbers("rate", args.rate, float)


def _numbers(name: str, text: str | None, kind: Callable[[str], _NumberT]) -> tuple[_NumberT, ...]:
    if text is None:
        return ()
    try:
        found = tuple(kind(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not 0 < min(found) <= max(found) < float("inf"):
        raise BadSetting(f"--{name} is {text!r}; write numbers above 0, such as 1,2,4", param=name)
    return found
