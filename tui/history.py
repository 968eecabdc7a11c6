"""Two minutes of snapshots, kept as the few numbers that are drawn. Knows no widgets and no clock.

Time is the appliance's own uptime: a stalled network shows as a gap, a restart as a fresh start.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.server.schemas import Percentiles, SystemSnapshot

WINDOW_S = 120.0
# A bin without a snapshot repeats the one before for this long; snapshots come twice a second.
_HOLD_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What one snapshot adds to the plots."""

    at_s: float
    ttft: Percentiles | None
    tpot: Percentiles | None
    output_tokens_per_s: float | None
    kv_used: float | None = None  # shares of the pool
    kv_held: float | None = None  # used or cached
    hit_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """Moments in order of time, none older than `WINDOW_S` before the last."""

    pid: int = 0
    moments: tuple[Moment, ...] = field(default=())

    def extended(self, snapshot: SystemSnapshot) -> "History":
        """With one snapshot more; from nothing if the appliance has restarted."""
        kv = snapshot.kv
        num_blocks = max(kv.num_blocks, 1) if kv else 1
        moment = Moment(
            at_s=snapshot.uptime_s,
            ttft=snapshot.latency.ttft if snapshot.latency else None,
            tpot=snapshot.latency.tpot if snapshot.latency else None,
            output_tokens_per_s=snapshot.throughput.output_tokens_per_s if snapshot.throughput else None,
            kv_used=kv.used_blocks / num_blocks if kv else None,
            kv_held=(kv.used_blocks + kv.cached_blocks) / num_blocks if kv else None,
            hit_rate=kv.prefix_hit_rate if kv else None,
        )
        has_restarted = snapshot.pid != self.pid or (
            bool(self.moments) and moment.at_s < self.moments[-1].at_s
        )
        kept = () if has_restarted else self.moments
        first = bisect_left(kept, moment.at_s - WINDOW_S, key=lambda old: old.at_s)
        return History(pid=snapshot.pid, moments=(*kept[first:], moment))

    def series(self, read: Callable[[Moment], float | None], num_bins: int) -> list[float | None]:
        """The largest value in each of `num_bins` equal parts of the window, the newest last.

        Bins begin at multiples of their width, so that a drawn shape moves left without changing.
        """
        bins: list[float | None] = [None] * num_bins
        if not self.moments:
            return bins
        bin_s = WINDOW_S / num_bins
        first_bin = math.floor(self.moments[-1].at_s / bin_s) - num_bins + 1
        seen_s = [-math.inf] * num_bins
        for moment in self.moments:
            index = math.floor(moment.at_s / bin_s) - first_bin
            if 0 <= index < num_bins:
                seen_s[index] = moment.at_s
                bins[index] = _larger(bins[index], read(moment))
        return _hold(bins, seen_s, bin_s, first_bin)


def _larger(left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return right if left is None else left
    return max(left, right)


def _hold(bins: list[float | None], seen_s: list[float], bin_s: float, first_bin: int) -> list[float | None]:
    """Fills bins that saw no snapshot from the bin before, for at most `_HOLD_S`."""
    held = list(bins)
    last_s, last_value = -math.inf, None
    for index, at_s in enumerate(seen_s):
        if at_s > -math.inf:
            last_s, last_value = at_s, bins[index]
        elif (first_bin + index) * bin_s - last_s <= _HOLD_S:
            held[index] = last_value
    return held
