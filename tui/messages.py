"""What the worker that follows the appliance tells the screen."""

from textual.message import Message

from tui.client import Outage, Sighting


class ApplianceSeen(Message):
    """A snapshot came, or a try to get one failed."""

    def __init__(self, event: Sighting | Outage) -> None:
        super().__init__()
        self.event = event
