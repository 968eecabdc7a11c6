"""What became of each sequence, as the snapshots let it be seen: to half a second. Knows no widgets.

An appliance that times the stages itself says more; this holds without it, and over any connection.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from appliance.server.schemas import LiveSequence, SystemSnapshot
from tui.figures import seconds

_NUM_ENDED = 100
_SNAPSHOTS_APART_S = 0.5
# Snapshots come twice a second: what runs at this age was seen to come.
_PROMPT_S = 1.5

Status = Literal["waiting", "prefill", "decode", "ended", "left", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stretch of a request's life; seconds since it came in."""

    name: str
    start_s: float
    duration_s: float
    is_exact: bool = False

    @property
    def text(self) -> str:
        """The duration as far as it is known."""
        if self.is_exact:
            return seconds(self.duration_s).strip()
        return "<0.5 s" if self.duration_s < _SNAPSHOTS_APART_S else seconds(self.duration_s).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRequest:
    """Times are the appliance's uptime; None for what has not been seen yet."""

    id: int
    arrived_s: float
    started_s: float | None = None
    first_token_s: float | None = None
    last_s: float
    is_late: bool = False  # it ran already when it was first seen: what came before is not known
    has_ended: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    output_tokens_per_s: float | None = None

    @property
    def key(self) -> str:
        """Unlike any other's."""
        return str(self.id)

    @property
    def status(self) -> Status:
        """Where it stands."""
        if self.has_ended:
            return "ended"
        if self.started_s is None:
            return "waiting"
        return "prefill" if self.first_token_s is None else "decode"

    @property
    def age_s(self) -> float:
        """From its arrival to when it was last seen."""
        return self.last_s - self.arrived_s

    @property
    def stages(self) -> list[Stage]:
        """Queue, prefill, decode, as far as it got."""
        was_decoding = self.is_late and self.started_s == self.first_token_s
        bounds = [
            ("unseen" if self.is_late else "queue", self.arrived_s, self.started_s),
            ("prefill", None if was_decoding else self.started_s, self.first_token_s),
            ("decode", self.first_token_s, self.last_s),
        ]
        return [
            Stage(
                name=name, start_s=start - self.arrived_s, duration_s=max((end or self.last_s) - start, 0.0)
            )
            for name, start, end in bounds
            if start is not None
        ]

    def seen(self, sequence: LiveSequence, now_s: float) -> "WatchedRequest":
        """With what one more snapshot says of it."""
        runs = sequence.status != "waiting"
        return replace(
            self,
            started_s=self.started_s if self.started_s is not None or not runs else now_s,
            first_token_s=(
                self.first_token_s if self.first_token_s is not None or not sequence.output_tokens else now_s
            ),
            last_s=now_s,
            prompt_tokens=sequence.prompt_tokens,
            output_tokens=max(sequence.output_tokens, self.output_tokens),
            output_tokens_per_s=sequence.output_tokens_per_s or self.output_tokens_per_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestWatch:
    """The live requests, oldest first, and the last that ended, newest first."""

    pid: int = 0
    live: tuple[WatchedRequest, ...] = field(default=())
    ended: tuple[WatchedRequest, ...] = field(default=())

    def extended(self, snapshot: SystemSnapshot) -> "RequestWatch":
        """With one snapshot more; from nothing if the appliance has restarted."""
        is_same = snapshot.pid == self.pid
        now_s = snapshot.uptime_s
        known = {one.id: one for one in self.live} if is_same else {}
        live = []
        for sequence in snapshot.sequences:
            is_late = sequence.status != "waiting" and sequence.age_s > _PROMPT_S
            new = WatchedRequest(
                id=sequence.id, arrived_s=now_s - sequence.age_s, last_s=now_s, is_late=is_late
            )
            live.append(known.pop(sequence.id, new).seen(sequence, now_s))
        over = [replace(one, has_ended=True) for one in known.values()]
        ended = (*reversed(over), *(self.ended if is_same else ()))[:_NUM_ENDED]
        live.sort(key=lambda one: (one.arrived_s, one.id))
        return RequestWatch(pid=snapshot.pid, live=tuple(live), ended=ended)
