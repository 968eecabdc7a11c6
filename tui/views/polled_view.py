"""The base of the tabs that ask the appliance for more than snapshots. Knows no data of its own."""

from textual.containers import Vertical
from textual.reactive import reactive

from tui.calls import ApplianceCalls, CallError
from tui.frame import Frame

_EVERY_S = 1.0


class PolledView(Vertical):
    """While it is seen, asks once a second; never twice at a time."""

    frame: reactive[Frame] = reactive(Frame(), always_update=True)

    def __init__(self, calls: ApplianceCalls, *, id: str) -> None:  # noqa: A002  (textual's own name)
        super().__init__(id=id)
        self._calls = calls
        self._is_asking = False

    def on_mount(self) -> None:
        """Starts the clock."""
        self.set_interval(_EVERY_S, self.ask_soon)

    def on_show(self) -> None:
        """No second of emptiness."""
        self.ask_soon()

    def ask_soon(self) -> None:
        """Unless nobody would see the answer, or one is on its way."""
        if self.display and not self._is_asking and self.frame.outage is None:
            self._is_asking = True
            self.run_worker(self._ask(), group="poll")

    async def _ask(self) -> None:
        try:
            await self.ask()
        except CallError as error:
            self.tell(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        finally:
            self._is_asking = False

    async def ask(self) -> None:
        """Asks the appliance and shows the answer. Raises CallError."""
        raise NotImplementedError

    def tell(self, text: str) -> None:
        """Shows what went wrong, or an empty text when nothing does."""
        raise NotImplementedError
