"""What each policy gains: pairs of runs on the same arrivals, on and off, and the bars they are held to."""

import random
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from appliance.engine.assembly import Policies, make_scheduler
from appliance.engine.block_pool import BlockPool
from appliance.engine.scheduler import Scheduler
from appliance.engine.sequence import FinishReason, Sequence, ServiceClass
from benchmarks.scheduling.load import (
    Request,
    around_600,
    brief,
    bursty,
    chat,
    poisson,
    requests,
    short_or_long,
)
from benchmarks.scheduling.simulation import (
    Outcome,
    Simulation,
    latency_s,
    percentile,
    queue_wait_s,
    static_batch_waits_s,
)
from benchmarks.scheduling.step_table import StepCosts

GOLD, SILVER, BRONZE = ServiceClass
BLOCK_SIZE, STEP_TOKENS, CONTEXT = 64, 512, 8192
NUM_LAYERS = 30  # of the model whose steps were measured
HEAD_SIZE, SCALE_BYTES = 64, 4
PEAK = 32
PEAK_BLOCKS, PEAK_BLOCK_SIZE = PEAK * 16, 4  # 32 of the brief sequences at about their mean length
ON = Policies()
_OVERLOAD_POLICIES = {
    "on": ON,
    "no classes": replace(ON, uses_classes=False),
    "no windows": replace(ON, uses_windows=False),
    "no patience": replace(ON, patience_s=float("inf")),
}
CLASS_MIX = {GOLD: 0.2, SILVER: 0.4, BRONZE: 0.4}
# Gold may wait so many times what the P99 request of the mix takes on an idle appliance.
GOLD_MULTIPLE = 2.5
CLASS_SHARES = {GOLD: 5 / 9, SILVER: 3 / 9, BRONZE: 1 / 9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One measure beside what was promised of it."""

    measure: str
    on: str
    off: str
    result: float
    promised: str
    passes: bool


# The bars of a scenario, and the values of its runs to draw.
Findings = tuple[tuple[Bar, ...], dict[str, list[float]]]


def scheduler_of(
    policies: Policies, *, num_blocks: int, max_sequences: int = 32, queue: int = 256
) -> Scheduler:
    return make_scheduler(
        BlockPool(num_blocks, BLOCK_SIZE),
        policies,
        max_sequences=max_sequences,
        step_tokens=STEP_TOKENS,
        context_length=CONTEXT,
        queue_limit=queue,
        enable_prefix_cache=False,
        num_layers=NUM_LAYERS,
    )


def capacity_per_s(lengths: SequenceOf[tuple[int, int]], costs: StepCosts, *, batch: int = 24) -> float:
    """Requests a second that steps of about `batch` streams can serve."""
    work_s = 0.0
    for num_prompt, num_output in lengths:
        work_s += num_prompt * (costs.prompt_token_s + costs.pair_s * num_prompt / 2)
        per_token_s = costs.step_s / batch + costs.stream_s
        work_s += num_output * (per_token_s + costs.context_s * (num_prompt + num_output / 2))
    return len(lengths) / work_s


def lengths_of(drawn: SequenceOf[Request]) -> list[tuple[int, int]]:
    return [(r.num_prompt, r.num_output) for r in drawn]


def continuous_against_static(costs: StepCosts, *, count: int = 4000) -> Findings:
    """Bursts that static batches of 8 just manage: nine tenths of what those serve."""
    sample = requests(poisson(random.Random(2), 1.0), chat, 2000)
    alone = [replace(r, arrival_s=0.0) for r in sample]
    static_per_s = len(alone) / (static_batch_end_s(alone, costs))
    arrivals = requests(bursty(random.Random(3), 0.9 * static_per_s), chat, count)
    outcome = Simulation(scheduler_of(ON, num_blocks=2048), costs).run(arrivals)
    on = [queue_wait_s(s) for s in outcome.sequences]
    off = static_batch_waits_s(arrivals, costs, batch_size=8)
    ratio = sum(on) / len(on) / (sum(off) / len(off))
    bar = Bar(
        measure="mean queue wait, continuous against static batches of 8, bursts",
        on=f"{sum(on) / len(on):.1f} s (P99 {percentile(on, 99):.0f} s)",
        off=f"{sum(off) / len(off):.1f} s (P99 {percentile(off, 99):.0f} s)",
        result=ratio,
        promised="<= 0.2x",
        passes=ratio <= 0.2,
    )
    return (bar,), {"continuous": on, "static batches of 8": off}


def static_batch_end_s(all_at_once: SequenceOf[Request], costs: StepCosts) -> float:
    """When the last of many static batches begins: about what they all take."""
    return static_batch_waits_s(all_at_once, costs, batch_size=8)[-1]


def lanes_against_fifo(costs: StepCosts, *, count: int = 6000, load: float = 0.85) -> Findings:
    """Nine requests of 50 tokens to one of 4000. Only the lanes differ."""
    arrivals = requests(poisson(random.Random(4), 1.0), short_or_long, count)
    rate = load * capacity_per_s(lengths_of(arrivals), costs)
    arrivals = [replace(r, arrival_s=r.arrival_s / rate) for r in arrivals]
    runs = {}
    for name, policies in (("lanes", ON), ("FIFO", replace(ON, short_work_tokens=0))):
        outcome = Simulation(scheduler_of(policies, num_blocks=1024), costs).run(arrivals)
        runs[name, "short"] = [latency_s(s) for s in outcome.sequences if s.num_prompt_tokens < 100]
        runs[name, "long"] = [latency_s(s) for s in outcome.sequences if s.num_prompt_tokens >= 100]
    p99 = {key: percentile(values, 99) for key, values in runs.items()}
    short = p99["lanes", "short"] / p99["FIFO", "short"]
    long = p99["lanes", "long"] / p99["FIFO", "long"]
    bars = (
        Bar(
            measure="short requests' P99 with lanes against FIFO, 50 and 4000 tokens",
            on=f"{p99['lanes', 'short']:.1f} s",
            off=f"{p99['FIFO', 'short']:.1f} s",
            result=short,
            promised="<= 0.4x",
            passes=short <= 0.4,
        ),
        Bar(
            measure="the long ones' P99 in the same runs",
            on=f"{p99['lanes', 'long']:.1f} s",
            off=f"{p99['FIFO', 'long']:.1f} s",
            result=long,
            promised="< 1.3x",
            passes=long < 1.3,
        ),
    )
    return bars, {f"{name}, {kind}": values for (name, kind), values in runs.items()}


def classes_at_overload(
    costs: StepCosts, *, count: int = 6000, overload: float = 2.0, num_draws: int = 4
) -> Findings:
    """Twice what can be served, of all classes, against the same without classes. Full queues refuse.

    Several draws of as many requests are taken together: the P99 of one moves by half from draw to draw.
    """
    runs: dict[str, list[Outcome]] = {name: [] for name in _OVERLOAD_POLICIES}
    untils_s, alone = list[float](), list[float]()
    for draw in range(num_draws):
        times = poisson(random.Random(5 + draw), 1.0)
        arrivals = requests(times, chat, count, seed=1 + draw, classes=CLASS_MIX)
        rate = overload * capacity_per_s(lengths_of(arrivals), costs)
        arrivals = [replace(r, arrival_s=r.arrival_s / rate) for r in arrivals]
        alone += [alone_s(r, costs) for r in arrivals]
        untils_s.append(arrivals[-1].arrival_s)
        for name, policies in _OVERLOAD_POLICIES.items():
            scheduler = scheduler_of(policies, num_blocks=2048, queue=64)
            simulation = Simulation(scheduler, costs, queue_limit=64)
            runs[name].append(simulation.run(arrivals, until_s=untils_s[-1]))
    waits = {each: _waits_s(_of_class(runs["on"], each)) for each in ServiceClass}
    blind = _waits_s([s for outcome in runs["no classes"] for s in outcome.sequences])
    target_s = GOLD_MULTIPLE * percentile(alone, 99)
    without = f"{percentile(blind, 99):.1f} s, all classes alike"
    bars = _class_bars(runs["on"], waits, without, untils_s, target_s)
    bars += _window_and_patience_bars(runs, untils_s)
    return bars, {each.value: waits[each] for each in ServiceClass} | {"without classes": blind}


def _of_class(outcomes: SequenceOf[Outcome], service_class: ServiceClass) -> list[Sequence]:
    return [s for outcome in outcomes for s in outcome.of_class(service_class)]


def alone_s(request: Request, costs: StepCosts) -> float:
    """What a request takes on an idle appliance, its prompt in one step."""
    num_prompt, num_output = request.num_prompt, request.num_output
    prompt_s = costs.step_s + num_prompt * (costs.prompt_token_s + costs.pair_s * num_prompt / 2)
    token_s = costs.step_s + costs.stream_s + costs.context_s * (num_prompt + num_output / 2)
    return prompt_s + (num_output - 1) * token_s


def _waits_s(sequences: SequenceOf[Sequence]) -> list[float]:
    return [queue_wait_s(s) for s in sequences if s.started_s is not None]


def _longest_s(outcomes: SequenceOf[Outcome], untils_s: SequenceOf[float]) -> float:
    """The longest wait for a start, of those too that still wait in the end."""
    return max(
        (until_s if s.started_s is None else s.started_s) - s.arrival_s
        for outcome, until_s in zip(outcomes, untils_s, strict=True)
        for s in outcome.sequences
    )


def _window_and_patience_bars(
    runs: Mapping[str, SequenceOf[Outcome]], untils_s: SequenceOf[float]
) -> tuple[Bar, ...]:
    """What these two give in the same overload; nothing is promised of either alone."""
    gold = {name: percentile(_waits_s(_of_class(runs[name], GOLD)), 99) for name in ("on", "no windows")}
    longest = {name: _longest_s(runs[name], untils_s) for name in ("on", "no patience")}
    windows, patience = gold["on"] / gold["no windows"], longest["on"] / longest["no patience"]
    return (
        Bar(
            measure="gold's P99 wait with admission windows and without",
            on=f"{gold['on']:.2f} s",
            off=f"{gold['no windows']:.2f} s",
            result=windows,
            promised="",
            passes=True,
        ),
        Bar(
            measure="longest wait with patience and without",
            on=f"{longest['on']:.0f} s",
            off=f"{longest['no patience']:.0f} s",
            result=patience,
            promised="",
            passes=True,
        ),
    )


def _class_bars(
    outcomes: SequenceOf[Outcome],
    waits: dict[ServiceClass, list[float]],
    off: str,
    untils_s: SequenceOf[float],
    target_s: float,
) -> tuple[Bar, ...]:
    p99 = {c: percentile(waits[c], 99) for c in ServiceClass}
    served = {c: sum(s.num_computed_tokens for s in _of_class(outcomes, c)) for c in ServiceClass}
    bronze_share = served[BRONZE] / sum(served.values())
    longest_s = _longest_s(outcomes, untils_s)
    bound_s = min(map(_wait_bound_s, outcomes, untils_s))
    return (
        Bar(
            measure="gold's P99 wait for its start at 2x overload, against its target",
            on=f"{p99[GOLD]:.2f} s",
            off=off,
            result=p99[GOLD] / target_s,
            promised=f"<= {target_s:.1f} s, {GOLD_MULTIPLE:g} times the P99 request alone",
            passes=p99[GOLD] <= target_s,
        ),
        Bar(
            measure="silver's P99 over gold's: silver gives way first",
            on=f"{p99[SILVER]:.1f} s",
            off=off,
            result=p99[SILVER] / p99[GOLD],
            promised="> 1x",
            passes=p99[SILVER] > p99[GOLD],
        ),
        Bar(
            measure="bronze's share of the tokens computed",
            on=f"{100 * bronze_share:.0f}%",
            off="",
            result=bronze_share / CLASS_SHARES[BRONZE],
            promised=">= 1/9",
            passes=bronze_share >= CLASS_SHARES[BRONZE],
        ),
        Bar(
            measure="longest wait for a start: patience, then four starts for each that came before",
            on=f"{longest_s:.0f} s",
            off="",
            result=longest_s / bound_s,
            promised=f"<= {bound_s:.0f} s",
            passes=longest_s <= bound_s,
        ),
    )


def _wait_bound_s(outcome: Outcome, until_s: float) -> float:
    """At the mean pace of starts; at most three full queues of 64 came before."""
    num_started = sum(s.started_s is not None for s in outcome.sequences)
    return ON.patience_s + 4 * 3 * 64 * until_s / num_started


def three_times_peak(costs: StepCosts, *, count: int = 100_000) -> Findings:
    """Three times as many clients as the pool holds requests, until every request was served.

    A queue for half of those that have to wait refuses the others, which come back, as after a 429.
    """
    asked = requests(poisson(random.Random(6), 1.0), brief, count)
    figures: dict[str, tuple[float, Outcome, int]] = {}
    for name, policies in (("on", ON), ("off", replace(ON, headroom=0.0))):
        scheduler = make_scheduler(
            BlockPool(PEAK_BLOCKS, PEAK_BLOCK_SIZE),
            policies,
            max_sequences=3 * PEAK,
            step_tokens=STEP_TOKENS,
            context_length=1024,
            enable_prefix_cache=False,
            num_layers=NUM_LAYERS,
        )
        sample = asked if name == "on" else asked[: count // 10]
        simulation = Simulation(scheduler, costs, queue_limit=PEAK, knows_lengths=False)
        outcome = simulation.run_clients(sample, 3 * PEAK)
        success = 1 - scheduler.num_preemptions / scheduler.pool.counters.num_allocations
        figures[name] = (success, outcome, scheduler.num_preemptions)
    success, outcome, num_preemptions = figures["on"]
    num_served = sum(s.finish_reason is FinishReason.STOP for s in outcome.sequences)
    lost = outcome.num_wrong_tokens + count - num_served
    bars = (
        Bar(
            measure="allocations that preempted nobody, at 3x peak concurrency",
            on=f"{100 * success:.3f}% ({num_preemptions} preemptions)",
            off=f"{100 * figures['off'][0]:.3f}% without headroom",
            result=success,
            promised=">= 99.9%",
            passes=success >= 0.999,
        ),
        Bar(
            measure=f"tokens lost, doubled or out of place, and requests not served, of {count:,}",
            on=f"{lost} ({outcome.num_refused:,} times refused for a full queue and asked again)",
            off="",
            result=float(lost),
            promised="0",
            passes=lost == 0,
        ),
    )
    return bars, {}


def prompts_beside_streams(costs: StepCosts, *, count: int = 3) -> Findings:
    """Four streams while a prompt of 6,400 tokens is computed: steps full of it, or cut to the budget."""
    found: dict[str, tuple[float, float]] = {}
    ratios: dict[str, list[float]] = {}
    for name, policies in (("budget", ON), ("full steps", replace(ON, stream_slowdown=0.0))):
        simulation = Simulation(scheduler_of(policies, num_blocks=2048), costs)
        ratios[name], prompt_s = simulation.run_beside(6400, num_streams=4, times=count)
        long = Request(arrival_s=0.0, num_prompt=6400, num_output=1)
        steps_s = (6400 / STEP_TOKENS) * costs.step_s + costs.context_s * 6400**2 / STEP_TOKENS / 2
        found[name] = (
            percentile(ratios[name], 99),
            prompt_s / (alone_s(long, costs) + steps_s - costs.step_s),
        )
    (itl, ttft), (full_itl, full_ttft) = found["budget"], found["full steps"]
    bars = (
        Bar(
            measure="P99 gap of 4 streams beside 6,400 tokens over undisturbed, with the prompt budget",
            on=f"{itl:.2f}x",
            off=f"{full_itl:.0f}x in full steps",
            result=itl,
            promised="",
            passes=True,
        ),
        Bar(
            measure="that prompt's own time to its first token over alone",
            on=f"{ttft:.2f}x",
            off=f"{full_ttft:.2f}x in full steps",
            result=ttft,
            promised="",
            passes=True,
        ),
    )
    return bars, {}


def concurrency_in_the_same_memory(costs: StepCosts, *, count: int = 1500) -> Findings:
    """As many at once as fit: pages of INT8 with their scales, against whole contexts of 16 bits."""
    num_reserved = 8
    int8_bytes, half_bytes = HEAD_SIZE + SCALE_BYTES, 2 * HEAD_SIZE  # a head's key or value of one token
    num_blocks = num_reserved * CONTEXT * half_bytes // int8_bytes // BLOCK_SIZE
    arrivals = [
        replace(r, arrival_s=0.0) for r in requests(poisson(random.Random(7), 1.0), around_600, count)
    ]
    free_of_prefill = replace(
        costs, prompt_token_s=0.0, pair_s=0.0
    )  # else prompts, not memory, are the limit
    scheduler = scheduler_of(ON, num_blocks=num_blocks, max_sequences=512)
    outcome = Simulation(scheduler, free_of_prefill).run(arrivals)
    ratio = outcome.mean_running / num_reserved
    bar = Bar(
        measure="sequences at once in the memory of 8 reserved contexts, lengths around 600 of 8,192",
        on=f"{outcome.mean_running:.0f}",
        off=str(num_reserved),
        result=ratio,
        promised=">= 4x",
        passes=ratio >= 4,
    )
    return (bar,), {}
