"""What the dashboard shows at one moment: the last snapshot, its history, and whether it is still true.

Frozen, and handed to every widget whole. Knows no widgets and no HTTP.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from appliance.server.schemas import SystemSnapshot
from tui.client import Outage, Sighting
from tui.history import History
from tui.request_watch import RequestWatch
from tui.targets import Targets

# About two seconds.
_NUM_GRACE_TRIES = 3


class View(Enum):
    """What fills the screen."""

    CARD = "card"  # nothing to measure yet: one message in the middle
    WELCOME = "welcome"  # ready, never asked: the panels and how to ask
    LIVE = "live"  # the panels and the table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """`address` is where apps are pointed at, without `/v1`."""

    address: str = ""
    asks_for_key: bool = False
    snapshot: SystemSnapshot | None = None
    history: History = field(default_factory=History)
    requests: RequestWatch = field(default_factory=RequestWatch)
    targets: Targets = field(default_factory=Targets)
    outage: Outage | None = None
    is_polled: bool = False

    def after(self, event: Sighting | Outage) -> "Frame":
        """The next frame."""
        if isinstance(event, Outage):
            return replace(self, outage=event)
        return replace(
            self,
            snapshot=event.snapshot,
            history=self.history.extended(event.snapshot),
            requests=self.requests.extended(event.snapshot),
            outage=None,
            is_polled=event.is_polled,
        )

    @property
    def is_searching(self) -> bool:
        """Nothing has answered yet, and it is too early to call that trouble: it may be starting."""
        return self.snapshot is None and (self.outage is None or self.outage.num_tries <= _NUM_GRACE_TRIES)

    @property
    def is_stale(self) -> bool:
        """The numbers are the last ones known, not the present ones."""
        return self.outage is not None and self.snapshot is not None

    @property
    def view(self) -> View:
        """A dashboard of dashes helps nobody: without an engine's numbers there is one card."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.phase == "failed" or snapshot.requests is None:
            return View.CARD
        if snapshot.phase in ("starting", "loading", "warming"):
            return View.CARD
        return View.LIVE if self._has_been_asked(snapshot) else View.WELCOME

    @staticmethod
    def _has_been_asked(snapshot: SystemSnapshot) -> bool:
        requests = snapshot.requests
        return bool(snapshot.sequences) or (
            requests is not None
            and any(
                (
                    requests.running,
                    requests.waiting,
                    requests.finished,
                    requests.aborted,
                    requests.failed,
                    requests.rejected,
                )
            )
        )
