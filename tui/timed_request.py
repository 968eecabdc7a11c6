"""A request that ended, with the stages that the appliance itself timed. Knows no widgets."""

from dataclasses import dataclass

from appliance.server.schemas import RequestStages
from tui.request_watch import Stage, Status

# Times of a record that are no stages; the others are, in their order.
_NO_STAGES = frozenset({"ended_unix_s", "longest_gap_s", "ttft_s", "tpot_s", "total_s"})
_STAGES = tuple(
    name.removesuffix("_s")
    for name in RequestStages.__struct_fields__
    if name.endswith("_s") and name not in _NO_STAGES
)
# Hardly any request has these.
_RARE = ("load", "grammar")
ID_CHARS = 5
_BAD_ENDS = frozenset({"failed", "error", "unread", "abort"})


def short_id(request_id: str) -> str:
    """Enough to tell requests apart, wherever one is shown."""
    return request_id[-ID_CHARS:]


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """Shown beside those that the snapshots let be seen."""

    record: RequestStages

    @property
    def id(self) -> str:
        """The end of the id in the log and in the answer."""
        return short_id(self.record.request_id)

    @property
    def key(self) -> str:
        """Unlike any other's."""
        return self.record.request_id

    @property
    def status(self) -> Status:
        """It is over, and whose doing that was if it came to no good end."""
        if self.record.reason == "client gone":
            return "left"
        return "failed" if _BAD_ENDS.intersection(self.record.reason.split(",")) else "ended"

    @property
    def has_ended(self) -> bool:
        """It is over."""
        return True

    @property
    def age_s(self) -> float:
        """From its first byte in to its last byte out."""
        return self.record.total_s

    @property
    def prompt_tokens(self) -> int:
        """Read, prefix hits included."""
        return self.record.prompt_tokens

    @property
    def output_tokens(self) -> int:
        """Generated."""
        return self.record.output_tokens

    @property
    def output_tokens_per_s(self) -> float | None:
        """While it decoded."""
        return 1 / self.record.tpot_s if self.record.tpot_s else None

    @property
    def stages(self) -> list[Stage]:
        """One after the other; detokenizing and sending happen during decoding and stand at the end."""
        start_s, stages = 0.0, []
        for name in _STAGES:
            duration_s = getattr(self.record, f"{name}_s")
            if duration_s is not None and (duration_s or name not in _RARE):
                stages.append(Stage(name=name, start_s=start_s, duration_s=duration_s, is_exact=True))
                start_s += duration_s
        return stages
