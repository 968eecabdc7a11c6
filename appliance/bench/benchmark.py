"""Runs the stages of a benchmark against one server, or against several in turns. Knows no output format."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from appliance.bench.exchange import Clock, Target
from appliance.bench.report import Stage, Targets, make_stage, span_s
from appliance.bench.request_timing import RequestTiming
from appliance.bench.session import Session
from appliance.bench.soak import Soaked, Window, window_of
from appliance.bench.traffic import Closed, OnDone, Open, Pattern, send_all
from appliance.bench.workload import Planned, longest_prompt

FEWEST_OPEN = 4  # requests of a turn in an open loop
_MOST_WINDOWS = 40
_MOST_TURNS = 60
Timings = tuple[RequestTiming, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A server to be loaded."""

    url: str
    model: str
    api_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What one stage sends. `load` is the number of clients, or of requests a second."""

    name: str
    load: float
    plans: tuple[Planned, ...]
    pattern: Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The whole run."""

    stages: tuple[StagePlan, ...]
    targets: Targets
    num_warm_up: int = 4


def sweep(peak: int) -> tuple[int, ...]:
    """Return the numbers of clients: powers of two up to the peak, then twice and three times it."""
    below = [2**power for power in range(peak.bit_length()) if 2**power < peak]
    return (*below, peak, 2 * peak, 3 * peak)


async def run_course(
    subjects: Sequence[Subject],
    course: Course,
    *,
    on_done: OnDone = lambda: None,
    clock: Clock = time.perf_counter,
) -> list[tuple[Stage, ...]]:
    """Return each subject's stages. Raises ServerUnusable."""
    longest = longest_prompt([plan for stage in course.stages for plan in stage.plans])
    sessions = [
        await Session.open(Target.parse(s.url, s.api_key), s.model, clock, num_tokens=longest)
        for s in subjects
    ]
    for session in sessions:
        await send_all(session, course.stages[0].plans[: course.num_warm_up], Closed(1))
    stages: list[list[Stage]] = [[] for _ in subjects]
    for plan in course.stages:
        found = await _run_stage(sessions, plan, course, on_done)
        for column, stage in zip(stages, found, strict=True):
            column.append(stage)
    return [tuple(column) for column in stages]


async def _run_stage(
    sessions: Sequence[Session], plan: StagePlan, course: Course, on_done: OnDone
) -> list[Stage]:
    rounds: list[list[Timings]] = [[] for _ in sessions]
    num_rounds = _num_turns(plan) if len(sessions) > 1 else 1
    for number in range(num_rounds):
        part = _part(plan, number, num_rounds)
        for index in _order(len(sessions), number):
            rounds[index].append(await send_all(sessions[index], part.plans, part.pattern, on_done))
    return [_stage(plan, found, course.targets) for found in rounds]


def _num_turns(plan: StagePlan) -> int:
    """Short turns, so that two servers see the same moments of the machine; each with all the clients."""
    least = plan.pattern.concurrency if isinstance(plan.pattern, Closed) else FEWEST_OPEN
    return max(1, min(_MOST_TURNS, len(plan.plans) // least))


def _stage(plan: StagePlan, rounds: Sequence[Timings], targets: Targets) -> Stage:
    return make_stage(
        plan.name,
        plan.load,
        rounds,
        is_open=isinstance(plan.pattern, Open),
        wall_s=sum(span_s(timings) for timings in rounds),
        targets=targets,
    )


def _order(count: int, number: int) -> Sequence[int]:
    """A then B, B then A: what changes slowly on the machine strikes both alike."""
    return range(count) if number % 2 == 0 else range(count - 1, -1, -1)


def _part(plan: StagePlan, number: int, num_rounds: int) -> StagePlan:
    """Return a stage's share of one round, its times counted from the round's own start."""
    start, end = (len(plan.plans) * n // num_rounds for n in (number, number + 1))
    pattern = plan.pattern
    if isinstance(pattern, Open):
        times = pattern.times_s[start:end]
        pattern = Open(tuple(at_s - times[0] for at_s in times))
    return StagePlan(name=plan.name, load=plan.load, plans=plan.plans[start:end], pattern=pattern)


async def run_soak(
    subjects: Sequence[Subject],
    part: Callable[[int], StagePlan],
    *,
    targets: Targets,
    duration_s: float,
    read_memory: Callable[[Subject], int | None],
    on_progress: Callable[[float], None] = lambda _: None,
    clock: Clock = time.perf_counter,
) -> list[Soaked]:
    """Load each server in turns for so long; `part(n)` gives the n-th part, after which memory is read.

    Raises ServerUnusable.
    """
    longest = longest_prompt(part(0).plans)
    sessions = [
        await Session.open(Target.parse(s.url, s.api_key), s.model, clock, num_tokens=longest)
        for s in subjects
    ]
    batches: list[list[_Batch]] = [[] for _ in subjects]
    start_s, number = clock(), 0
    while (elapsed_s := clock() - start_s) < duration_s:
        on_progress(elapsed_s)
        plan = part(number)
        for index in _order(len(subjects), number):
            timings = await send_all(sessions[index], plan.plans, plan.pattern)
            batches[index].append(_Batch(timings, read_memory(subjects[index])))
        number += 1
    return [_soaked(part(0), found, targets) for found in batches]


class _Batch(NamedTuple):
    timings: Timings
    memory_bytes: int | None


def _soaked(plan: StagePlan, batches: Sequence[_Batch], targets: Targets) -> Soaked:
    stage = _stage(plan, [batch.timings for batch in batches], targets)
    return Soaked(windows=_windows(batches), stage=stage)


def _windows(batches: Sequence[_Batch]) -> tuple[Window, ...]:
    """Join neighbouring batches, so that a long soak's windows stay few and steady."""
    count = min(len(batches), _MOST_WINDOWS)
    found = []
    for number in range(count):
        start, end = (len(batches) * n // count for n in (number, number + 1))
        timings = [timing for batch in batches[start:end] for timing in batch.timings]
        found.append(window_of(timings, batches[end - 1].memory_bytes))
    return tuple(found)
