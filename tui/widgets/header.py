"""Two lines on top: how the appliance is, what it runs, and where apps reach it."""

from textual.content import Content

from appliance.server.schemas import ModelSnapshot
from tui.drawing import bar, spread
from tui.figures import age, count, parameters, percent
from tui.frame import Frame
from tui.widgets.panel import Panel

_PHASES = {
    "starting": ("◌", "starting", "$p50"),
    "loading": ("◌", "loading", "$p50"),
    "warming": ("◌", "warming up", "$p50"),
    "ready": ("●", "ready", "$p50"),
    "draining": ("◐", "draining", "$warn"),
    "failed": ("✖", "failed", "$bad"),
}
_PROGRESS_WIDTH = 16
_SEPARATOR = " · "


class Header(Panel):
    """Phase and model, then facts and address. What does not fit is left out whole, never cut."""

    def lines(self) -> list[Content]:
        """Two lines; the address is always whole."""
        width = self.content_size.width
        address = Content.assemble(("apps ", "$dim"), (f"{self.frame.address}/v1", "bold $p50"))
        room = width - address.cell_length - 2
        facts = self._alarms(room) or Content.styled(self._facts(room), "$dim")
        return [
            spread(self._phase(width - 12), self._uptime(), width),
            spread(facts, address, width),
        ]

    def _alarms(self, width: int) -> Content | None:
        """A missed target takes the place of the facts."""
        alarms = [f"▲ {alarm.text}" for alarm in self.frame.targets.alarms(self.frame.snapshot)]
        while len(alarms) > 1 and len("  ".join(alarms)) > width:
            alarms.pop()
        return Content.styled("  ".join(alarms), "bold $bad").truncate(width) if alarms else None

    def _phase(self, width: int) -> Content:
        mark, word, style = phase_words(self.frame)
        phase = Content.styled(f"{mark} {word}", f"bold {style}")
        name = self._model_name()
        return Content.assemble(
            phase, self._progress(), "  ", (name, "bold $ink"), self._draining_detail()
        ).truncate(width, ellipsis=True)

    def _model_name(self) -> str:
        snapshot = self.frame.snapshot
        return snapshot.model.id if snapshot and snapshot.model else ""

    def _progress(self) -> Content:
        snapshot = self.frame.snapshot
        if snapshot is None or snapshot.phase_progress is None or self.frame.is_stale:
            return Content("")
        share = snapshot.phase_progress
        return Content.assemble(" ", bar([(share, "$p50")], _PROGRESS_WIDTH), (f" {percent(share)}", "$ink"))

    def _draining_detail(self) -> Content:
        snapshot = self.frame.snapshot
        if snapshot is None or snapshot.phase != "draining" or not snapshot.phase_detail:
            return Content("")
        return Content.styled(f"  {snapshot.phase_detail}", "$warn")

    def _uptime(self) -> Content:
        snapshot = self.frame.snapshot
        if snapshot is None:
            return Content("")
        return Content.assemble(("up ", "$dim"), (age(snapshot.uptime_s), "$ink"))

    def _facts(self, width: int) -> str:
        snapshot = self.frame.snapshot
        if snapshot is None or snapshot.model is None:
            return ""
        facts = ""
        for fact in model_facts(snapshot.model):
            longer = f"{facts}{_SEPARATOR}{fact}" if facts else fact
            if len(longer) > width:
                break
            facts = longer
        return facts


def phase_words(frame: Frame) -> tuple[str, str, str]:
    """A mark, the word and its colour role."""
    if frame.is_searching:
        return "○", "connecting", "$dim"
    if frame.outage is not None:
        tries = f" (try {frame.outage.num_tries})" if frame.outage.num_tries > 1 else ""
        word = "disconnected" if frame.snapshot is None else "reconnecting"
        return "○", f"{word}{tries}", "$warn"
    assert frame.snapshot is not None
    return _PHASES[frame.snapshot.phase]


def model_facts(model: ModelSnapshot) -> list[str]:
    """The most telling first."""
    threads = f"{model.num_threads} thread{'s' if model.num_threads != 1 else ''}"
    return [
        model.precision,
        f"KV {model.kv_dtype}",
        f"{model.backend} on {model.device}",
        *([threads] if model.device.startswith("cpu") else []),
        f"context {count(model.context_length)}",
        f"{model.architecture} {parameters(model.num_parameters)}",
    ]
