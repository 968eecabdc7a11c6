"""Asks for the latencies to hold. Knows milliseconds, not who checks them."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from tui.targets import Targets


class TargetDialog(ModalScreen[Targets | None]):
    """Two numbers; an empty field means no target. Enter takes them, Esc leaves all as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", show=False)]

    def __init__(self, targets: Targets) -> None:
        super().__init__()
        self._targets = targets

    def compose(self) -> ComposeResult:
        """The two fields."""
        with Vertical(id="targets") as box:
            box.border_title = "Targets"
            box.border_subtitle = "Enter takes them, Esc leaves"
            yield Static("Alarm when the P95 of the last minute passes (ms):")
            yield Static("Time to first token", classes="label")
            yield Input(_text(self._targets.ttft_s), type="number", id="ttft-target", placeholder="none")
            yield Static("Time per output token", classes="label")
            yield Input(_text(self._targets.tpot_s), type="number", id="tpot-target", placeholder="none")

    def on_input_submitted(self) -> None:
        """Takes both."""
        self.dismiss(Targets(ttft_s=self._read("#ttft-target"), tpot_s=self._read("#tpot-target")))

    def _read(self, selector: str) -> float | None:
        try:
            value = float(self.query_one(selector, Input).value)
        except ValueError:
            return None
        return value / 1000 if 0 < value < float("inf") else None


def _text(target_s: float | None) -> str:
    return "" if target_s is None else f"{target_s * 1000:g}"
