"""The latencies that the operator wants to hold, and which of them are missed. Draws nothing."""

from dataclasses import dataclass

from appliance.server.schemas import Percentiles, SystemSnapshot
from tui.figures import round_seconds, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One target missed by the P95 of the window: `name` is a panel's id too."""

    name: str
    measured_s: float
    target_s: float

    @property
    def text(self) -> str:
        """`TTFT P95 1.42 s, over 500 ms`."""
        return (
            f"{self.name.upper()} P95 {seconds(self.measured_s).strip()}, over {round_seconds(self.target_s)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Upper limits of the 95th percentile in seconds; None where there is none."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def alarms(self, snapshot: SystemSnapshot | None) -> list[Alarm]:
        """The targets that `snapshot` misses."""
        if snapshot is None or snapshot.latency is None:
            return []
        pairs = (("ttft", self.ttft_s, snapshot.latency.ttft), ("tpot", self.tpot_s, snapshot.latency.tpot))
        return [alarm for name, target_s, seen in pairs if (alarm := _alarm(name, target_s, seen))]


def _alarm(name: str, target_s: float | None, seen: Percentiles) -> Alarm | None:
    if target_s is None or seen.p95_s is None or seen.p95_s <= target_s:
        return None
    return Alarm(name=name, measured_s=seen.p95_s, target_s=target_s)
