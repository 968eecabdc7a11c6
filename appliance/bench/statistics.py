"""What samples allow to say: percentiles with confidence intervals, and whether two sets differ."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from statistics import NormalDist, median
from typing import NamedTuple

from appliance.engine.percentiles import nearest_rank

PERCENTS = (50, 95, 99)
_RESAMPLES = 1000
_MOST_EXACT = 60
_MOST_PAIRED = 1000  # of each side: a million quotients


class Interval(NamedTuple):
    """A percentile and the interval that holds it with 95% confidence."""

    value: float
    low: float
    high: float


def percentiles(values: Sequence[float], *, seed: int = 0) -> tuple[Interval, ...]:
    """Return p50, p95 and p99 with percentile-bootstrap intervals (Efron 1979); () for no values."""
    if not values:
        return ()
    import numpy as np

    ascending = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ascending)
    drawn = np.sort(np.random.default_rng(seed).integers(0, count, (_RESAMPLES, count)), axis=1)
    found = []
    for percent in PERCENTS:
        # The order statistic of a resample is that of its sorted indices.
        resampled = ascending[drawn[:, max(1, math.ceil(count * percent / 100)) - 1]]
        low, high = np.percentile(resampled, (2.5, 97.5))
        found.append(Interval(nearest_rank(ascending.tolist(), percent), float(low), float(high)))
    return tuple(found)


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of the rank-sum test, with ties corrected (Mann, Whitney 1947).

    The normal approximation: meant for 8 values and more on each side.
    """
    n1, n2 = len(first), len(second)
    if not n1 or not n2:
        return 1.0
    ranked = sorted([(value, 0) for value in first] + [(value, 1) for value in second])
    rank_sum, ties, index = 0.0, 0.0, 0
    while index < len(ranked):
        end = index
        while end < len(ranked) and ranked[end][0] == ranked[index][0]:
            end += 1
        rank_sum += (index + end + 1) / 2 * sum(side == 0 for _, side in ranked[index:end])
        ties += (end - index) ** 3 - (end - index)
        index = end
    total = n1 + n2
    variance = n1 * n2 / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    excess = max(0.0, abs(rank_sum - n1 * (n1 + 1) / 2 - n1 * n2 / 2) - 0.5)
    return 2 * NormalDist().cdf(-excess / math.sqrt(variance))


def signed_rank(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the signed-rank test (Wilcoxon 1945); zeros count for nothing.

    Exact, ties included, up to 60 differences; the normal approximation above.
    """
    sizes = sorted(abs(difference) for difference in differences if difference)
    if not sizes:
        return 1.0
    # Twice the mean rank of equals is whole.
    ranks = {size: 2 * bisect_left(sizes, size) + sizes.count(size) + 1 for size in set(sizes)}
    total = sum(ranks[size] for size in sizes)
    plus = sum(ranks[abs(difference)] for difference in differences if difference > 0)
    if len(sizes) > _MOST_EXACT:
        variance = sum(ranks[size] ** 2 for size in sizes) / 4
        return 2 * NormalDist().cdf(-max(0.0, abs(plus - total / 2) - 1) / math.sqrt(variance))
    # ways[s]: so many of the 2**n choices of signs give the positive ranks the sum s.
    ways = [1] + [0] * total
    for size in sizes:
        rank = ranks[size]
        for at in range(total, rank - 1, -1):
            ways[at] += ways[at - rank]
    tail = sum(ways[: min(plus, total - plus) + 1])
    return min(1.0, 2 * tail / (1 << len(sizes)))


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the typical second/first: the median of all pairs' mean log quotients (Hodges, Lehmann 1963)."""
    logs = [math.log(after / before) for before, after in pairs]
    means = [(logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i, len(logs))]
    return math.exp(median(means))


def typical_ratio(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the median of all quotients after/before (Hodges, Lehmann 1963): steadier than the medians'."""
    import numpy as np

    source = np.random.default_rng(0)
    sides = [np.asarray(values, dtype=np.float64) for values in (before, after)]
    first, second = (source.choice(v, _MOST_PAIRED) if len(v) > _MOST_PAIRED else v for v in sides)
    return float(np.median(np.divide.outer(second, np.maximum(first, 1e-12))))


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Return the change from the first value to the last along the Theil-Sen line, and its p-value.

    The p-value is that of the Mann-Kendall test: the probability of such an order by chance.
    """
    count = len(values)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    if count < 4:
        return 0.0, 1.0
    score = sum((values[j] > values[i]) - (values[j] < values[i]) for i, j in pairs)
    slope = median((values[j] - values[i]) / (j - i) for i, j in pairs)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return slope * (count - 1), 2 * NormalDist().cdf(-max(0, abs(score) - 1) / deviation)
