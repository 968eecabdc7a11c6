"""What quitting the dashboard does to an appliance in the same process. Knows neither side."""

from typing import Protocol


class QuitHook(Protocol):
    """Called from the dashboard's thread; every method returns at once."""

    def drain(self) -> None:
        """The first quit: take no new requests, finish those that run."""

    def is_drained(self) -> bool:
        """True once nothing runs any more: the dashboard then leaves. Asked ten times a second."""

    def stop(self) -> None:
        """The second quit: end everything now. The dashboard leaves without waiting."""
