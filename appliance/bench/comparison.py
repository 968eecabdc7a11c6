"""Whether one run is slower than another: a rank test for chance, a tolerance for what matters.

Two servers that took turns are compared turn by turn: what else the machine does strikes both sides of a pair
alike, and requests of one moment, which resemble each other, count as one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from appliance.bench.report import METRICS, Report, Stage
from appliance.bench.statistics import mann_whitney, paired_ratio, signed_rank, typical_ratio

# Chance of one false alarm in a whole comparison, shared out over its tests (Bonferroni).
SIGNIFICANCE = 0.01
_FEWEST = 8  # samples on a side: below it the test's approximation does not hold
_FEWEST_TURNS = 12  # all of one sign: p = 0.0005, below a whole sweep's threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric of one stage in both runs, medians in seconds."""

    stage: str
    metric: str
    before_s: float
    after_s: float
    change: float  # 0.1: a tenth slower
    p_value: float
    verdict: str  # "slower", "faster", "no difference", "too few samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One metric of one stage in both runs: every sample, and the medians of the turns of both."""

    stage: str
    metric: str
    before: Sequence[float]
    after: Sequence[float]
    turns: Sequence[tuple[float, float]]


def compare(
    before: Report, after: Report, *, tolerance: float = 0.05, is_paired: bool = False
) -> tuple[Difference, ...]:
    """Compare the stages that both runs have. A change within `tolerance` is none, however sure.

    `is_paired`: both ran at one time, in turns.
    """
    old = {stage.name: stage for stage in before.stages}
    cells = [
        _cell(metric, old[stage.name], stage, is_paired=is_paired)
        for stage in after.stages
        if stage.name in old
        for metric in METRICS
    ]
    tested = [cell for cell in cells if cell.before and cell.after]
    threshold = SIGNIFICANCE / max(1, len(tested))
    return tuple(_judge(cell, threshold=threshold, tolerance=tolerance) for cell in tested)


def _cell(metric: str, before: Stage, after: Stage, *, is_paired: bool) -> _Cell:
    pairs = zip(before.rounds.get(metric, ()), after.rounds.get(metric, ()), strict=False)
    return _Cell(
        stage=after.name,
        metric=metric,
        before=before.samples.get(metric, ()),
        after=after.samples.get(metric, ()),
        turns=[(one, other) for one, other in pairs if one and other] if is_paired else (),
    )


def _judge(cell: _Cell, *, threshold: float, tolerance: float) -> Difference:
    before, after = cell.before, cell.after
    if len(cell.turns) >= _FEWEST_TURNS:
        p_value = signed_rank([math.log(new / old) for old, new in cell.turns])
        change = paired_ratio(cell.turns) - 1
    else:
        p_value = mann_whitney(before, after)
        change = typical_ratio(before, after) - 1
    verdict = "no difference"
    if min(len(before), len(after)) < _FEWEST:
        verdict = "too few samples"
    elif p_value < threshold and abs(change) > tolerance:
        verdict = "slower" if change > 0 else "faster"
    return Difference(
        stage=cell.stage,
        metric=cell.metric,
        before_s=median(before),
        after_s=median(after),
        change=change,
        p_value=p_value,
        verdict=verdict,
    )


def is_slower(differences: Sequence[Difference]) -> bool:
    return any(difference.verdict == "slower" for difference in differences)


def summary(differences: Sequence[Difference]) -> str:
    """Return the whole comparison in a sentence."""
    if not differences:
        return "nothing to compare: the runs have no stage in common"
    if all(difference.verdict == "too few samples" for difference in differences):
        return f"too few samples: each side needs {_FEWEST} requests a stage"
    found = [d for d in differences if d.verdict in ("slower", "faster")]
    if not found:
        return "no difference"
    return "; ".join(f"{d.stage}: {d.metric} is {abs(d.change):.0%} {d.verdict}" for d in found)
