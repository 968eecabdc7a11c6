"""Whether one run is slower than another: a rank test for chance, a tolerance for what matters."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from appliance.bench.report import METRICS, Report
from appliance.bench.statistics import mann_whitney, typical_ratio

# Chance of one false alarm in a whole comparison, shared out over its tests (Bonferroni).
SIGNIFICANCE = 0.01
_FEWEST = 8  # samples on a side: below it the test's approximation does not hold


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


def compare(before: Report, after: Report, *, tolerance: float = 0.05) -> tuple[Difference, ...]:
    """Compare the stages that both runs have. A change within `tolerance` is none, however sure."""
    old = {stage.name: stage.samples for stage in before.stages}
    cells = [
        (stage.name, metric, old[stage.name].get(metric, ()), stage.samples.get(metric, ()))
        for stage in after.stages
        if stage.name in old
        for metric in METRICS
    ]
    tested = [cell for cell in cells if cell[2] and cell[3]]
    threshold = SIGNIFICANCE / max(1, len(tested))
    return tuple(_judge(*cell, threshold=threshold, tolerance=tolerance) for cell in tested)


def _judge(
    stage: str,
    metric: str,
    before: Sequence[float],
    after: Sequence[float],
    *,
    threshold: float,
    tolerance: float,
) -> Difference:
    p_value = mann_whitney(before, after)
    change = typical_ratio(before, after) - 1
    verdict = "no difference"
    if min(len(before), len(after)) < _FEWEST:
        verdict = "too few samples"
    elif p_value < threshold and abs(change) > tolerance:
        verdict = "slower" if change > 0 else "faster"
    return Difference(
        stage=stage,
        metric=metric,
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
